// Package tree finds the files of the repository for the checks of archtest. In a git checkout, these are the files
// that git tracks. Other files are left out, for example those that a user creates while following the documentation.
//
// The package owns these rules. It has no goroutines.
package tree

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// File is one file.
type File struct {
	Name string // path below the root, with slashes
	Text []byte
}

// Names returns the paths of the regular files in the repository below root. The paths are relative to root, have
// slashes, and are in lexical order.
//
// In a git checkout, Names returns only tracked files, so a new file is missing until git add. In an unpacked archive,
// or if git cannot list the files, Names returns all files except those in directories named bin or .git.
func Names(root string) ([]string, error) {
	if _, err := os.Lstat(filepath.Join(root, ".git")); err == nil {
		if out, err := tracked(root); err == nil {
			return out, nil
		}
	}
	return walk(root)
}

func tracked(root string) (out []string, err error) {
	text, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(text), "\x00") {
		info, err := os.Lstat(filepath.Join(root, filepath.FromSlash(name)))
		if err == nil && info.Mode().IsRegular() { // a tracked file may be missing from the work tree
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil // git lists a file in conflict several times
}

func walk(root string) (out []string, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		below, err := filepath.Rel(root, name)
		out = append(out, filepath.ToSlash(below))
		return err
	})
	slices.Sort(out)
	return out, err
}

// GoFiles returns the elements of names that are Go files of the module. Test data and nested modules are left out.
func GoFiles(names []string) (out []string) {
	var nested []string
	for _, name := range names {
		if dir, file := path.Split(name); file == "go.mod" && dir != "" {
			nested = append(nested, dir)
		}
	}
	for _, name := range names {
		inNested := slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(name, dir) })
		if strings.HasSuffix(name, ".go") && !inNested && !Data(name) {
			out = append(out, name)
		}
	}
	return out
}

// Data reports whether the file at the given path is test data, or is in a folder that the go command ignores.
func Data(name string) bool {
	folders := strings.Split(path.Dir(name), "/")
	return slices.ContainsFunc(folders, func(folder string) bool {
		return folder == "testdata" || strings.HasPrefix(folder, "_") || strings.HasPrefix(folder, ".") && folder != "."
	})
}

// Files returns the files below root that people write, in lexical order. Test data, golden files and generated files
// are not among them.
func Files(root string) (out []File, err error) {
	names, err := Names(root)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if Data(name) && !strings.HasPrefix(name, ".ci/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		if f := (File{name, text}); !f.generated() {
			out = append(out, f)
		}
	}
	return out, nil
}

func (f File) generated() bool {
	head, _, _ := bytes.Cut(f.Text, []byte("\npackage "))
	return strings.HasSuffix(f.Name, ".go") && bytes.Contains(head, []byte("// Code generated ")) ||
		strings.HasSuffix(f.Name, ".golden") || strings.HasSuffix(f.Name, "go.sum")
}
