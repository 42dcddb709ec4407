// Command language checks that the repository does not use the words of a word list, and has no line of more than 120
// columns. It looks for unwanted words in Go comments, string literals, documentation and files that deploy the
// product. It checks the length of lines in Go files, pages, style sheets, YAML, scripts and Makefiles.
//
//	go run ./internal/archtest/language            fails if a folder has more problems than counts.txt allows
//	go run ./internal/archtest/language -list node  prints all problems of the folder node
//	go run ./internal/archtest/language -update     lowers counts.txt; it never raises a count
//
// It owns counts.txt, which has the number of problems that each folder may still have. The numbers may only fall. A
// folder that is not in counts.txt must have no problems. Test data, golden files and generated files are not checked.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/archtest/tree"
)

// countsFile holds what each folder may have.
const countsFile = "internal/archtest/language/counts.txt"

// key is one count: a folder and a rule.
type key struct{ dir, rule string }

func main() {
	root := flag.String("root", ".", "the repository")
	list := flag.String("list", "", "print everything that is found in this folder, without those below it; . "+
		"is the root")
	update := flag.Bool("update", false, "lower the counts to what is found; without the file, write it")
	flag.Parse()
	if err := run(*root, *list, *update, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "language: "+err.Error())
		os.Exit(1)
	}
}

func run(root, list string, update bool, out io.Writer) error {
	found, err := findAll(root)
	if err != nil {
		return err
	}
	if list != "" {
		for _, rule := range []string{wordRule, columnRule} {
			for _, p := range found[key{path.Clean(list), rule}] {
				fmt.Fprintln(out, p)
			}
		}
		return nil
	}
	file := path.Join(root, countsFile)
	allowed, err := readCounts(file)
	if update && errors.Is(err, os.ErrNotExist) {
		return writeCounts(file, count(found))
	}
	if err != nil {
		return err
	}
	if update {
		return writeCounts(file, lowered(allowed, count(found)))
	}
	return compare(out, allowed, found)
}

// findAll returns what breaks the rules, by folder and rule.
func findAll(root string) (map[key][]problem, error) {
	files, err := tree.Files(root)
	if err != nil {
		return nil, err
	}
	out, compiled := map[key][]problem{}, finders()
	for _, f := range files {
		problems, err := check(f, compiled)
		if err != nil {
			return nil, err
		}
		for _, p := range problems {
			k := key{path.Dir(f.Name), p.rule}
			out[k] = append(out[k], p)
		}
	}
	return out, nil
}

func count(found map[key][]problem) map[key]int {
	out := map[key]int{}
	for k, problems := range found {
		out[k] = len(problems)
	}
	return out
}

// lowered is the smaller of both for each folder and rule.
func lowered(allowed, found map[key]int) map[key]int {
	out := map[key]int{}
	for k, n := range allowed {
		if n = min(n, found[k]); n > 0 {
			out[k] = n
		}
	}
	return out
}

// compare prints the problems of the folders that have more than counts.txt allows, and returns an error that names
// these folders. It also prints how many counts can be lowered, because their folders have fewer problems.
func compare(out io.Writer, allowed map[key]int, found map[key][]problem) error {
	var over []string
	lower := 0
	for _, k := range slices.SortedFunc(maps.Keys(found), byName) {
		if len(found[k]) <= allowed[k] {
			continue
		}
		for _, p := range found[k] {
			fmt.Fprintln(out, p)
		}
		over = append(over, fmt.Sprintf("%s has %d %s, not %d", k.dir, len(found[k]), k.rule, allowed[k]))
	}
	for k, n := range allowed {
		if len(found[k]) < n {
			lower++
		}
	}
	if lower > 0 {
		fmt.Fprintf(out, "%d counts can be lowered: go run ./internal/archtest/language -update\n", lower)
	}
	if len(over) > 0 {
		return errors.New(strings.Join(over, "; "))
	}
	return nil
}

func byName(a, b key) int { return strings.Compare(a.dir+" "+a.rule, b.dir+" "+b.rule) }

// readCounts reads lines of folder, rule and number.
func readCounts(file string) (map[key]int, error) {
	f, err := os.Open(file) //nolint:gosec // of the repository
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	out := map[key]int{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var k key
		var n int
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if _, err := fmt.Sscan(lines.Text(), &k.dir, &k.rule, &n); err != nil {
			return nil, fmt.Errorf("%s: %q is not a folder, a rule and a number: %w", file, lines.Text(), err)
		}
		out[k] = n
	}
	return out, lines.Err()
}

func writeCounts(file string, counts map[key]int) error {
	var b strings.Builder
	b.WriteString("# How many breaches of the word list and of the 120 columns each folder may have. A count " +
		"only falls.\n")
	for _, k := range slices.SortedFunc(maps.Keys(counts), byName) {
		fmt.Fprintf(&b, "%s %s %d\n", k.dir, k.rule, counts[k])
	}
	return os.WriteFile(file, []byte(b.String()), 0o600)
}
