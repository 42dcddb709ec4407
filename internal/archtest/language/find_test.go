package language_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/archtest/tree"
)

const (
	maxColumns = 120
	tabWidth   = 4
)

// problem is one place that breaks a rule.
type problem struct {
	file string
	line int
	rule string // wordRule or columnRule
	text string
}

const (
	wordRule   = "words"
	columnRule = "columns"
)

func (p problem) String() string { return fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text) }

// check returns what breaks the rules in a file, by line.
func check(f tree.File, finders []finder) (out []problem, err error) {
	switch {
	case strings.HasPrefix(f.Name, "internal/archtest/language/"):
		return nil, nil // the files of this package name the words
	case strings.HasSuffix(f.Name, ".go"):
		out, err = checkGo(f, finders)
	case isScript(f.Name):
		out = checkText(f.Name, 1, shown(string(f.Text)), finders)
	case isText(f.Name):
		out = checkText(f.Name, 1, string(f.Text), finders)
	}
	if hasColumns(f.Name) {
		out = append(out, checkColumns(f.Name, string(f.Text), unwrapped(f.Name, string(f.Text)))...)
	}
	slices.SortStableFunc(out, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	return out, err
}

// isText reports whether the word list applies to the whole text of a file, as in documentation and in files that
// deploy the product. In other files, such as code, it applies only to comments and strings.
func isText(name string) bool {
	return slices.Contains([]string{".md", ".yml", ".yaml", ".service", ".tmpl"}, path.Ext(name)) ||
		strings.HasPrefix(name, "deploy/") && path.Ext(name) == ".json"
}

// isScript reports whether people read the comments of a file and what it prints.
func isScript(name string) bool {
	base := path.Base(name)
	return slices.Contains([]string{".sh", ".py"}, path.Ext(name)) || base == "Makefile" ||
		strings.HasPrefix(base, "Dockerfile") || strings.HasPrefix(name, ".ci/")
}

// shown empties the lines of a script that have neither a comment nor a quoted string. The empty lines stay, so line
// numbers do not change.
func shown(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.ContainsAny(line, "#\"'") {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

func checkText(name string, first int, text string, finders []finder) (out []problem) {
	for _, f := range finders {
		for _, at := range f.in(text) {
			line := first + strings.Count(text[:at], "\n")
			out = append(out, problem{name, line, wordRule, fmt.Sprintf("%q: write %s", f.not, f.but)})
		}
	}
	return out
}

// hasColumns reports whether the column limit applies to a file that is not in Go. It does not apply to generated
// files, nor to JSON, whose strings cannot be broken.
func hasColumns(name string) bool {
	generated := []string{"docs/cli.md"}
	endings := []string{".md", ".css", ".js", ".html", ".svg", ".yml", ".yaml"}
	return slices.Contains(endings, path.Ext(name)) && !slices.Contains(generated, name) || isScript(name)
}

// unwrapped returns the numbers of the lines of a Markdown page that may be longer than the limit: tables, code
// blocks and comments.
func unwrapped(name, text string) map[int]bool {
	out := map[int]bool{}
	if path.Ext(name) != ".md" {
		return out
	}
	code, comment := false, false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		fence := strings.HasPrefix(line, "```")
		code, comment = code != fence, comment || strings.HasPrefix(line, "<!--")
		out[i+1] = code || fence || comment || strings.HasPrefix(line, "|")
		comment = comment && !strings.HasSuffix(line, "-->")
	}
	return out
}

// checkColumns returns the lines that are too long, except those in free.
func checkColumns(name, text string, free map[int]bool) (out []problem) {
	for i, line := range strings.Split(text, "\n") {
		if n := columns(line); n > maxColumns && !free[i+1] && !unbreakable(line) {
			out = append(out, problem{name, i + 1, columnRule, fmt.Sprintf("%d columns, more than %d", n, maxColumns)})
		}
	}
	return out
}

// checkGo returns the problems of a Go file: unwanted words in its comments and string literals, and lines that are
// too long.
func checkGo(f tree.File, finders []finder) (out []problem, err error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f.Name, f.Text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range parsed.Comments {
		lines := strings.Split(commentText(group), "\n")
		out = append(out, checkText(f.Name, fset.Position(group.Pos()).Line, strings.Join(lines, "\n"), finders)...)
	}
	raw := map[int]bool{} // lines inside a literal that cannot be broken
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				first, last := fset.Position(n.Pos()).Line, fset.Position(n.End()).Line
				out = append(out, checkText(f.Name, first, unquoted(n.Value), finders)...)
				for line := first + 1; line < last; line++ {
					raw[line] = true
				}
			}
		}
		return true
	})
	return append(out, checkColumns(f.Name, string(f.Text), raw)...), nil
}

// commentText returns the text of a comment group without the comment signs, line by line as in the file.
func commentText(group *ast.CommentGroup) string {
	lines := make([]string, len(group.List))
	for i, c := range group.List {
		lines[i] = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), "/*"), "*/")
	}
	return strings.Join(lines, "\n")
}

// unquoted returns the content of a literal without its quotes. It replaces the escapes of a newline and of a tab with
// two blanks, so that they separate words.
func unquoted(literal string) string {
	return strings.NewReplacer(`\n`, "  ", `\t`, "  ").Replace(literal[1 : len(literal)-1])
}

// columns returns the width of a line. A tab counts as tabWidth.
func columns(line string) (n int) {
	for _, r := range line {
		if r == '\t' {
			n += tabWidth
		} else {
			n++
		}
	}
	return n
}

// unbreakable reports whether a line may be longer than the limit, because it is a compiler directive or a comment
// with just a URL.
func unbreakable(line string) bool {
	trimmed := strings.TrimSpace(line)
	if strings.HasPrefix(trimmed, "//go:") {
		return true
	}
	words := strings.Fields(strings.TrimPrefix(trimmed, "//"))
	return strings.HasPrefix(trimmed, "//") && len(words) <= 2 && strings.Contains(trimmed, "://")
}
