package language_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/archtest/tree"
)

// found returns the words of the list that a text contains.
func found(text string) (out []string) {
	for _, f := range finders() {
		for range f.in(text) {
			out = append(out, f.not)
		}
	}
	return out
}

func TestWords_FindsTheWrongUse(t *testing.T) {
	for text, want := range map[string]string{
		"The message names the mend.":                       "mend",
		"the same line but for its id":                      "but for",
		"complete but\nfor the application":                 "but for",
		"equal but that one is longer":                      "but that",
		"the majority is lost for good.":                    "for good",
		"a backup of before does not count":                 "of before, those of before",
		"nil if there is none, an error else.":              "else (at the end of a sentence)",
		"20 s else":                                         "else (at the end of a sentence)",
		"A write waits for its like, and goes on":           "its like, the like",
		"a server that bears a tombstone":                   "bears",
		"the leader takes it in":                            "takes in",
		"it stands before the log":                          "stands before",
		"a packet is worth nothing":                         "is worth",
		"the rule holds for restores, too":                  "holds for",
		"Nobody answers.":                                   "nobody (for servers)",
		"a voter who is down":                               "who (for servers)",
		"it knows who leads group 0":                        "who (for servers)",
		"the machine is told":                               "said, told, asked (for program events)",
		"a restore is a row of log entries":                 "a row of",
		"two lives of one node id":                          "life (of a process)",
		"the marks of removed servers":                      "mark (of a removed server)",
		"the store vouched for it":                          "vouched for",
		"a calm log":                                        "calm",
		"the crowd closes connections":                      "crowd",
		"n5 becomes a replica, for there are voters enough": "replica (meaning no vote)",
		"flags of the existing runtime":                     "the existing runtime, a well-known runtime",
		"the API of a well-known runtime is served":         "the existing runtime, a well-known runtime",
	} {
		if got := found(text); !slices.Contains(got, want) {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

func TestWords_LeaveTheRightUseAlone(t *testing.T) {
	for _, text := range []string{
		"This is fast, but that costs memory.", "not for reads but for writes", "for good reason", "something else.",
		"else if it is empty",
		"the lock is held for 5 s", "it holds for 30 seconds", "bear it in mind", "three times in a row",
		"the life cycle of a node",
		"one file lives beside the other", "a bearer token", "mark the entry", "the replica applies entries",
		"see internal/connlimit", "amendment",
		"numbers are taken in order", "everything else that follows",
	} {
		if got := found(text); len(got) > 0 {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestCheck_LooksAtWhatPeopleRead(t *testing.T) {
	long := strings.Repeat("x", maxColumns)
	text := `package p

import "example.com/mend"

// F is told
// nothing but
// for its name.
func mend() { log("it can\'t mend") }

var a = ` + "`raw\n" + long + " raw\nraw`" + `
//go:embed ` + long + `
// ` + long + `
// https://` + long + `
`
	text = strings.ReplaceAll(text, `\'`, "")
	problems, err := check(tree.File{Name: "node/p.go", Text: []byte(text)}, finders())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, regexp.MustCompile(`[:,] (write|more).*`).ReplaceAllString(p.String(), ""))
	}
	want := []string{
		`node/p.go:5: "said, told, asked (for program events)"`,
		`node/p.go:6: "but for"`,
		`node/p.go:8: "mend"`,
		`node/p.go:14: 123 columns`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestCheck_ReadsDocumentsAndScripts(t *testing.T) {
	for name, want := range map[string]int{
		"docs/a.md": 3, "deploy/a.yml": 3, "Makefile": 2, ".ci/run": 2, "deploy/Dockerfile": 2, "deploy/a.json": 3,
		"data.bin": 0,
	} {
		problems, err := check(tree.File{Name: name, Text: []byte("# mend\nmend\necho 'mend'\n")}, finders())
		if err != nil || len(problems) != want {
			t.Errorf("%s: %v, %v", name, problems, err)
		}
	}
}

func TestCheck_FindsLongLines(t *testing.T) {
	long := strings.Repeat("word ", 25)
	page := long + "\n```\n" + long + "\n```\n<!-- typed:\n" + long + "\n-->\n| " + long + "|\n" + long + "\n"
	for name, want := range map[string][]int{
		"docs/a.md": {1, 9}, "docs/cli.md": nil, "Makefile": {1, 3, 6, 8, 9}, "a.css": {1, 3, 6, 8, 9},
		"a.yml": {1, 3, 6, 8, 9}, ".ci/run": {1, 3, 6, 8, 9}, "a.json": nil,
	} {
		problems, err := check(tree.File{Name: name, Text: []byte(page)}, finders())
		var lines []int
		for _, p := range problems {
			lines = append(lines, p.line)
		}
		if err != nil || !slices.Equal(lines, want) {
			t.Errorf("%s: %v, %v, want %v", name, lines, err, want)
		}
	}
}

// TestRepository_KeepsToWordsAndColumns checks that no file of the repository uses a word of the list or has a longer
// line.
func TestRepository_KeepsToWordsAndColumns(t *testing.T) {
	files, err := tree.Files("../../..")
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	compiled := finders()
	for _, f := range files {
		problems, err := check(f, compiled)
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			t.Error(p)
		}
	}
}
