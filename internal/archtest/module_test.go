package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/archtest/tree"
)

const modulePath = "github.com/quorate/quorate"

// source is one parsed file.
type source struct {
	name string // path below the module, with slashes
	test bool
	ast  *ast.File
	fset *token.FileSet

	vars map[string]bool // package variables of all files of the package
}

// pkg returns the folder of the file, below the module; "." is the module itself.
func (s *source) pkg() string { return path.Dir(s.name) }

// at returns the file and line of a position, for messages.
func (s *source) at(p token.Pos) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(p).Line)
}

// imports maps the local names of imports to their paths.
func (s *source) imports() map[string]string {
	out := map[string]string{}
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused such a file
		}
		name := path.Base(p)
		if version := strings.TrimPrefix(name, "v"); version != name && strings.Trim(version, "0123456789") == "" {
			name = path.Base(path.Dir(p)) // a major version is no name
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out[name] = p
	}
	return out
}

// parse parses the text of a file of the module, or a text that a test has made up.
func parse(t *testing.T, name string, text []byte) *source {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	s := &source{name: name, test: strings.HasSuffix(name, "_test.go"),
		ast: f, fset: fset}
	s.vars = variables(s)
	return s
}

// shareVariables lets the files of a package see each other's package variables.
func shareVariables(files []*source) {
	all := map[string]map[string]bool{}
	for _, s := range files {
		if all[s.pkg()] == nil {
			all[s.pkg()] = map[string]bool{}
		}
		if !s.test {
			maps.Copy(all[s.pkg()], s.vars)
		}
		s.vars = all[s.pkg()]
	}
}

// module parses every Go file of the module, without nested modules and test data.
func module(t *testing.T) []*source {
	t.Helper()
	root := moduleRoot(t)
	names, err := tree.Names(root)
	if err != nil {
		t.Fatal(err)
	}
	var out []*source
	for _, name := range tree.GoFiles(names) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, parse(t, name, text))
	}
	if len(out) < 50 {
		t.Fatalf("only %d files found below %s", len(out), root)
	}
	shareVariables(out)
	return out
}

// moduleRoot returns the folder with go.mod above this one.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}
