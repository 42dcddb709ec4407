package docs_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/archtest/tree"
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

// mapped returns the folders that the map in ARCHITECTURE.md lists. A folder ends with /... if its line stands for all
// packages below it.
func mapped(text string) (out []string, err error) {
	_, text, _ = strings.Cut(text, "\n## Packages\n")
	_, text, ok := strings.Cut(text, "\n```text\n")
	text, _, closed := strings.Cut(text, "\n```\n")
	if !ok || !closed {
		return nil, errors.New("no block of text after the heading Packages")
	}
	var above []string // the folders that contain the one of the next line
	for line := range strings.SplitSeq(text, "\n") {
		entry := strings.TrimLeft(line, " ")
		folder, _, _ := strings.Cut(entry, " ")
		depth := (len(line) - len(entry)) / 2
		if depth > len(above) || !strings.HasSuffix(folder, "/") && !strings.HasSuffix(folder, "/...") {
			return nil, fmt.Errorf("the line %q begins with no folder", line)
		}
		above = append(above[:depth], strings.TrimSuffix(folder, "/"))
		out = append(out, strings.Join(above, "/"))
	}
	return out, nil
}

// missing returns the packages that no line of the map stands for.
func missing(folders, packages []string) (out []string) {
	for _, pkg := range packages {
		if !slices.ContainsFunc(folders, func(folder string) bool {
			below, all := strings.CutSuffix(folder, "/...")
			return pkg == below || all && strings.HasPrefix(pkg, below+"/")
		}) {
			out = append(out, pkg)
		}
	}
	return out
}

func TestArchitecture_MapsEveryPackage(t *testing.T) {
	folders, err := mapped(read(t, "docs/ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, name := range tree.GoFiles(files(t)) {
		if !strings.HasSuffix(name, "_test.go") {
			packages = append(packages, path.Dir(name))
		}
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	if len(packages) < 100 {
		t.Fatalf("only %d packages found", len(packages))
	}
	for _, pkg := range missing(folders, packages) {
		t.Errorf("the map in docs/ARCHITECTURE.md has no line for %s: add one that says what the package is for", pkg)
	}
	for _, folder := range folders {
		folder = strings.TrimSuffix(folder, "/...")
		if info, err := os.Stat(filepath.Join(root, filepath.FromSlash(folder))); err != nil || !info.IsDir() {
			t.Errorf("the map in docs/ARCHITECTURE.md has a line for %s, which does not exist: remove the line", folder)
		}
	}
}

func TestMissing_FindsPackagesWithoutLine(t *testing.T) {
	text := "\n## Packages\n\nText.\n\n```text\napi/     the API\n  http/  HTTP\n    body/ JSON\nnode/\n" +
		"  state/... stores\n```\n"
	folders, err := mapped(text)
	if want := []string{"api", "api/http", "api/http/body", "node", "node/state/..."}; err != nil ||
		!slices.Equal(folders, want) {
		t.Fatalf("%q, %v, want %q", folders, err, want)
	}
	packages := []string{"api", "api/grpc", "api/http", "api/http/body", "api/http/body/x", "node", "node/state",
		"node/state/redis", "node/states"}
	want := []string{"api/grpc", "api/http/body/x", "node/states"}
	if got := missing(folders, packages); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, bad := range []string{"api/\n      http/ too deep", "text", "api the API"} {
		if folders, err := mapped("\n## Packages\n\n```text\n" + bad + "\n```\n"); err == nil {
			t.Errorf("%q: %q", bad, folders)
		}
	}
}
