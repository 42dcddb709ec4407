package docs_test

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/archtest/tree"
)

// page is one Markdown file. Its path is relative to the root of the repository, with slashes.
type page struct {
	path  string
	text  string
	parts []part
}

// part is a piece of a page: a block of code with the mark before it, or a mark without a block.
type part struct {
	line     int    // of the page, counted from 1
	section  int    // number of the heading above it
	language string // "" = a mark without a block
	text     string
	mark     mark
}

// mark is an HTML comment that readers do not see: <!-- not run: it needs systemd -->.
type mark struct{ word, text string }

// The words of marks. A mark is in the line before a block, except hidden and end.
const (
	notRun  = "not run" // in front of a block: the reason why tests cannot execute it
	prints  = "prints"  // in front of a text block: what the sh block before it prints; … is anything
	example = "example" // in front of a text block: it is no output of the lines before it
	file    = "file"    // in front of a block: a file of that name
	on      = "on"      // in front of a sh block: machines that it is typed on
	answers = "answers" // in front of a sh block: what is typed when a command asks
	asRoot  = "as root" // in front of a sh block: only root can type this, and why
	hidden  = "typed"   // lines that are typed without being shown
	end     = "Ctrl-C"  // everything that was started on the page is ended
)

var (
	heading = regexp.MustCompile(`^#{1,6} +(.+?) *$`)
	fence   = regexp.MustCompile("^( *)```([a-z]*)$")
	comment = regexp.MustCompile(`(?s)^<!-- (` +
		strings.Join([]string{notRun, prints, example, file, on, answers, asRoot, hidden, end}, "|") +
		`)(?::(.*?))? ?-->$`)
)

// parse splits a page into its parts.
func parse(path, text string) (page, error) {
	p := page{path: path, text: text}
	lines := strings.Split(text, "\n")
	section, pending := 0, mark{}
	for i := 0; i < len(lines); i++ {
		begin := i
		switch line := lines[i]; {
		case fence.MatchString(line):
			m := fence.FindStringSubmatch(line)
			var body []string
			for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
				body = append(body, strings.TrimPrefix(lines[i], m[1]))
			}
			if i == len(lines) {
				return p, fmt.Errorf("%s:%d: the block has no end", path, begin+1)
			}
			p.parts = append(p.parts, part{begin + 1, section, m[2], strings.Join(body, "\n") + "\n", pending})
			pending = mark{}
			continue
		case heading.MatchString(line):
			section++
		case strings.HasPrefix(strings.TrimSpace(line), "<!-- "):
			for !strings.HasSuffix(lines[i], "-->") && i < len(lines)-1 {
				i++
			}
			m := comment.FindStringSubmatch(strings.TrimSpace(strings.Join(lines[begin:i+1], "\n")))
			if m == nil {
				continue // of another kind: generated, end
			}
			pending = mark{m[1], strings.TrimSpace(m[2])}
			if pending.word == hidden || pending.word == end {
				p.parts = append(p.parts, part{line: begin + 1, section: section, mark: pending})
				pending = mark{}
			}
			continue
		}
		if pending.word != "" {
			return p, fmt.Errorf("%s:%d: no block comes after the mark %q", path, begin+1, pending.word)
		}
	}
	return p, nil
}

// problems returns the problems of the marks of a page. Every block must have a language or a mark, and every mark
// that needs a reason must have one. Shown output must follow a command in the same section.
func (p page) problems() (out []string) {
	typed := -1 // section of the last sh block
	for _, b := range p.parts {
		at := fmt.Sprintf("%s:%d: ", p.path, b.line)
		switch {
		case b.mark.word == end, b.mark.word == prints:
		case b.mark.word == example && b.language == "text":
		case b.mark.text == "" && b.mark.word != "":
			out = append(out, at+"the mark "+b.mark.word+" says nothing")
		case b.language == "" && b.mark.word == "":
			out = append(out, at+"the block says no language: sh for what is typed, text for what is printed")
		case b.language == "text" && b.mark.word == "" && typed == b.section:
			out = append(out, at+"after lines that are typed, this is what they print (<!-- prints -->) or "+
				"not (<!-- example -->)")
		}
		if b.mark.word == prints && (b.language != "text" || typed != b.section) {
			out = append(out, at+"no line was typed in this section that could print this")
		}
		if b.language == "sh" || b.mark.word == hidden {
			typed = b.section
		}
	}
	return out
}

// runs reports whether any command of a page is executed.
func (p page) runs() bool {
	for _, b := range p.parts {
		if b.mark.word == hidden || b.language == "sh" && b.mark.word != notRun {
			return true
		}
	}
	return false
}

// types reports whether a program is named in the commands of a page that are executed.
func (p page) types(program string) bool {
	for _, b := range p.parts {
		if b.language == "sh" && b.mark.word != notRun && strings.Contains(b.text, program) {
			return true
		}
	}
	return false
}

const root = ".."

// files returns the paths of all files of the repository, with slashes.
func files(t *testing.T) []string {
	t.Helper()
	names, err := tree.Names(root)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// pages are all Markdown files of the tree.
func pages(t *testing.T) []page {
	t.Helper()
	var out []page
	for _, name := range files(t) {
		if path.Ext(name) != ".md" || tree.Data(name) {
			continue
		}
		p, err := parse(name, read(t, name))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	if len(out) < 40 {
		t.Fatalf("only %d pages found", len(out))
	}
	return out
}

func TestPages_EveryBlockIsRunOrExcused(t *testing.T) {
	run := 0
	for _, p := range pages(t) {
		for _, problem := range p.problems() {
			t.Error(problem)
		}
		for _, b := range p.parts {
			switch {
			case b.mark.word == notRun:
				t.Logf("%s:%d is not run: %s", p.path, b.line, b.mark.text)
			case b.language == "sh":
				run += strings.Count(b.text, "\n")
			}
		}
	}
	t.Logf("%d lines are run by make docs-test", run)
	if run < 60 {
		t.Errorf("only %d lines are run", run)
	}
}

func TestPages_FindsUnmarkedBlocks(t *testing.T) {
	const block = "```sh\ntrue\n```\n"
	for text, bad := range map[string]bool{
		block: false,
		"<!-- not run: it needs systemd -->\n" + block:                 false,
		"<!-- not run -->\n" + block:                                   true,
		"```\ntrue\n```\n":                                             true,
		block + "```text\nyes\n```\n":                                  true,
		block + "<!-- prints -->\n```text\nyes\n```\n":                 false,
		block + "# A\n```text\na picture\n```\n":                       false,
		block + "# A\n<!-- prints -->\n```text\nyes\n```\n":            true,
		block + "<!-- example -->\n```text\nyes\n```\n":                false,
		"<!-- typed:\ntrue\n-->\n<!-- prints -->\n```text\nyes\n```\n": false,
		"<!-- typed: -->\n":                                            true,
	} {
		p, err := parse("x.md", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.problems(); (len(got) > 0) != bad {
			t.Errorf("%q: %q", text, got)
		}
	}
	for _, text := range []string{"<!-- prints -->\nprose\n", "```sh\ntrue\n"} {
		if _, err := parse("x.md", text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
