package loader

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// distinct finds files that are listed twice, even if their paths differ.
type distinct struct{ seen []os.FileInfo }

// first records a file or folder, and returns true if it was not recorded before. Different paths to the same file
// count as one file. If path cannot be read, first returns true, so that the caller tries to read it and gets the
// error.
func (d *distinct) first(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true
	}
	if d.has(info) {
		return false
	}
	d.seen = append(d.seen, info)
	return true
}

// contains reports whether the file or folder was recorded. It returns false if path cannot be read.
func (d *distinct) contains(path string) bool {
	info, err := os.Stat(path)
	return err == nil && d.has(info)
}

func (d *distinct) has(info os.FileInfo) bool {
	return slices.ContainsFunc(d.seen, func(known os.FileInfo) bool { return os.SameFile(known, info) })
}

// findFiles returns the component files in paths, in order and without duplicates. Each path is a file or a folder. The
// second result has a warning for each file in a folder that is not a component file.
func findFiles(paths []string, once *distinct) (files []string, skipped []component.Problem, err error) {
	for _, path := range paths {
		path = filepath.Clean(path)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, nil, pathError(path, err)
		case !once.first(path):
			continue
		case !info.IsDir():
			files = append(files, path)
			continue
		}
		inside, odd, err := folder(path)
		if err != nil {
			return nil, nil, err
		}
		for _, file := range inside {
			if once.first(file) {
				files = append(files, file)
			}
		}
		skipped = append(skipped, odd...)
	}
	return files, skipped, nil
}

// folder returns the component files in a folder, sorted by name, and a warning for each other file. It ignores
// subfolders. It also ignores names that begin with a dot, because editors and volume mounts create them.
func folder(path string) (files []string, skipped []component.Problem, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, pathError(path, err)
	}
	for _, entry := range entries {
		name := entry.Name()
		full := filepath.Join(path, name)
		if strings.HasPrefix(name, ".") {
			continue
		}
		// Stat follows links, which mounted configuration uses.
		info, err := os.Stat(full)
		switch {
		case err != nil:
			return nil, nil, pathError(full, err)
		case info.IsDir():
			continue
		case !isYAML(name) || !info.Mode().IsRegular():
			skipped = append(skipped, component.Problem{Pos: component.Pos{File: full},
				Text: "skipped: it is not a .yaml or .yml file"})
			continue
		}
		files = append(files, full)
	}
	return files, skipped, nil
}

func isYAML(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".yaml" || ext == ".yml"
}

func parseFile(path string) (component.File, error) {
	f, _, err := userfile.Open(path)
	if err != nil {
		return component.File{}, pathError(path, err)
	}
	defer f.Close() //nolint:errcheck // read only
	return component.Parse(path, f)
}

func pathError(path string, err error) error {
	e := &fault.Error{Code: fault.Internal, Op: "loader.Read", Key: path, Msg: "reading components", Err: err}
	if errors.Is(err, fs.ErrNotExist) {
		e.Code, e.Hint = fault.NotFound, "create it, or correct the resources path"
	}
	return e
}
