// Package tree finds the files of the repository that people write. Test data, golden files, generated files and build
// results are not among them.
//
// It owns the choice of these files for all checks. It has no goroutines.
package tree

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is one file.
type File struct {
	Name string // path below the root, with slashes
	Text []byte
}

// Files returns the files below root in lexical order.
func Files(root string) (out []File, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && builtOrData(d.Name()):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of the repository
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if f := (File{filepath.ToSlash(name), text}); !f.generated() {
			out = append(out, f)
		}
		return err
	})
	return out, err
}

func builtOrData(dir string) bool {
	return dir == "testdata" || dir == "bin" || strings.HasPrefix(dir, "_") || strings.HasPrefix(dir, ".") &&
		dir != ".ci"
}

func (f File) generated() bool {
	head, _, _ := bytes.Cut(f.Text, []byte("\npackage "))
	return strings.HasSuffix(f.Name, ".go") && bytes.Contains(head, []byte("// Code generated ")) ||
		strings.HasSuffix(f.Name, ".golden") || strings.HasSuffix(f.Name, "go.sum")
}
