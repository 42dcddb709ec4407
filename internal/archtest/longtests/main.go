// Command longtests prints the tests that go test -short skips or shortens. For each package it prints one line with
// the folder and a pattern for go test -run. make test-long runs exactly these tests.
//
// A test is long if it calls testing.Short, directly or through functions in the test files of its package. The
// command owns only this rule.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	found, err := find(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "longtests: "+err.Error())
		os.Exit(1)
	}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		fmt.Printf("./%s ^(%s)$\n", dir, strings.Join(found[dir], "|"))
	}
}

// find maps the folders below root to the sorted names of their long tests.
func find(root string) (map[string][]string, error) {
	calls := map[string]map[string][]string{} // by folder and function
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && excluded(path, d) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if calls[dir] == nil {
			calls[dir] = map[string][]string{}
		}
		return addCalls(calls[dir], path)
	})
	out := map[string][]string{}
	for dir, functions := range calls {
		if tests := long(functions); len(tests) > 0 {
			out[filepath.ToSlash(dir)] = tests
		}
	}
	return out, err
}

// excluded reports whether go test ./... does not look into a folder.
func excluded(path string, d fs.DirEntry) bool {
	if strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

// addCalls records which functions the functions of a Go file use. In the map, the key is the name of a function, and
// the value has the names that occur in its body. A call of testing.Short adds the name "testing.Short".
func addCalls(functions map[string][]string, path string) error {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		name := fn.Name.Name
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				functions[name] = append(functions[name], n.Name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "testing" && n.Sel.Name == "Short" {
					functions[name] = append(functions[name], "testing.Short")
				}
			}
			return true
		})
	}
	return nil
}

// long returns the sorted names of the tests from which testing.Short can be reached.
func long(functions map[string][]string) (tests []string) {
	reaches := map[string]bool{"testing.Short": true}
	for grown := true; grown; {
		grown = false
		for name, calls := range functions {
			if !reaches[name] && slices.ContainsFunc(calls, func(c string) bool { return reaches[c] }) {
				reaches[name], grown = true, true
			}
		}
	}
	for name := range functions {
		if reaches[name] && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}
