// Package suggest finds the known word that a user probably meant when typing an unknown one.
//
// It owns the definition of similarity. It has no goroutines.
package suggest

import (
	"slices"
	"strings"
)

// maxWord bounds the words that are compared, in bytes; a longer one is no typing error.
const maxWord = 64

// For returns the candidate that is most similar to word, or "" if none is similar enough. Case, "-" and "_" do not
// matter. Among equally similar candidates, the first one wins.
func For(word string, candidates []string) string {
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
	var before []int // the row before the previous one
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
