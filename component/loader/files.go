package loader

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// findFiles returns the files that paths stand for, in order and each once, and the ones
// in their folders that are left out.
func findFiles(paths []string) (files []string, skipped []component.Problem, err error) {
	seen := map[string]bool{}
	first := func(path string) bool {
		again := seen[path]
		seen[path] = true
		return !again
	}
	for _, path := range paths {
		path = filepath.Clean(path)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, nil, pathError(path, err)
		case !first(path):
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
			if first(file) {
				files = append(files, file)
			}
		}
		skipped = append(skipped, odd...)
	}
	return files, skipped, nil
}

// folder lists the component files directly in a folder, in name order. Names that begin
// with a dot are editors' and volume mounts' own business and not worth a warning.
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
		info, err := os.Stat(full) // follows links, as mounted configuration uses them
		switch {
		case err != nil:
			return nil, nil, pathError(full, err)
		case info.IsDir():
			continue
		case !isYAML(name) || !info.Mode().IsRegular():
			skipped = append(skipped, component.Problem{Pos: component.Pos{File: full}, Text: "skipped: it is not a .yaml or .yml file"})
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
	f, err := os.Open(path)
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
