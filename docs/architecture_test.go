package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// place is a table row in ARCHITECTURE.md that names a file and a function in it.
type place struct{ heading, file, function string }

// places are the rows of all tables with the columns File and Function.
func places(text string) (out []place) {
	row := regexp.MustCompile("`([a-zA-Z0-9_/]+\\.go)` \\| `([A-Za-z0-9_.]+)` \\|")
	heading := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
		if m := row.FindStringSubmatch(line); m != nil {
			out = append(out, place{heading, m[1], m[2]})
		}
	}
	return out
}

// declared are the functions and types of a file; a method is Type.Name.
func declared(t *testing.T, file string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil, 0)
	if os.IsNotExist(err) {
		t.Errorf("ARCHITECTURE.md names %s, which does not exist", file)
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			out[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if ty, ok := s.(*ast.TypeSpec); ok {
					out[ty.Name.Name] = true
				}
			}
		}
	}
	return out
}

// receiver is the type of a method with a dot, or nothing.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if generic, ok := e.(*ast.IndexExpr); ok {
		e = generic.X
	}
	return e.(*ast.Ident).Name + "."
}

func TestArchitecture_NamesFilesAndFunctionsThatExist(t *testing.T) {
	rows := places(read(t, "docs/ARCHITECTURE.md"))
	steps := map[string]int{}
	for _, p := range rows {
		steps[p.heading]++
		if names := declared(t, p.file); names != nil && !names[p.function] {
			t.Errorf("%s: %s has no %s", p.heading, p.file, p.function)
		}
	}
	for heading, want := range map[string][2]int{"A strong save": {8, 15}, "An eventual read": {4, 15},
		"A call to another node": {4, 15}, "Where is X": {20, 40}} {
		if n := steps[heading]; n < want[0] || n > want[1] {
			t.Errorf("%s has %d rows, want %d to %d", heading, n, want[0], want[1])
		}
	}
}

func TestPlaces_FindsRowsWithFileAndFunction(t *testing.T) {
	got := places("## A\n| 1 | text | `a/b.go` | `T.M` | why |\n| 2 | no function | `a/b.go` | |\n### B\n| x " +
		"| `c.go` | `f` |\n")
	if len(got) != 2 || got[0] != (place{"A", "a/b.go", "T.M"}) || got[1] != (place{"B", "c.go", "f"}) {
		t.Errorf("%v", got)
	}
}
