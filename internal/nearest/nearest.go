// Package nearest finds the word a person most likely meant.
//
// It owns the measure of likeness. It has no goroutines.
package nearest

import (
	"slices"
	"strings"
)

// maxWord bounds the words that are compared, in bytes; a longer one is no slip of a hand.
const maxWord = 64

// To returns the candidate that differs least from word, or nothing where none is close
// enough to be meant. Case, "-" and "_" do not count. Among equals the first wins.
func To(word string, candidates []string) string {
	if word == "" || len(word) > maxWord {
		return ""
	}
	word = fold(word)
	best, least := "", maxWord
	for _, c := range candidates {
		folded := fold(c)
		limit := max(1, min(2, len(folded)/3))
		if d := edits(word, folded); d <= limit && d < least {
			best, least = c, d
		}
	}
	return best
}

func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
}

// edits counts insertions, deletions, replacements and swaps of neighbouring bytes.
func edits(a, b string) int {
	var before []int // the row above last
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = slices.Clone(last), row
	}
	return last[len(b)]
}

func differ(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}
