package pluggable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

const (
	maxEntries = 500 // files in the folder of sockets
	maxPath    = 103 // bytes of the path of a Unix socket; macOS has the smallest limit
)

// findSocket returns the path of the socket in folder that has the given name. It ignores case and the file extension.
// It does not follow symbolic links. If there is no such socket, it returns fault.Unavailable, because the process may
// still be starting.
func findSocket(folder, name string) (string, error) {
	const op = "pluggable.Find"
	files, err := list(folder)
	if err != nil {
		return "", err
	}
	var found, unfit []string
	for _, f := range files {
		stem := strings.TrimSuffix(f.Name(), filepath.Ext(f.Name()))
		switch {
		case !strings.EqualFold(stem, name):
		case f.Type().Type() == fs.ModeSocket:
			found = append(found, f.Name())
		default:
			unfit = append(unfit, f.Name())
		}
	}
	slices.Sort(found)
	switch {
	case len(found) > 1:
		return "", &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "the sockets " + strings.Join(found, " and ") + " in " + folder + " have the same name",
			Hint: "remove those of processes that have ended"}
	case len(found) == 1:
		path := filepath.Join(folder, found[0])
		if len(path) > maxPath {
			return "", &fault.Error{Code: fault.Invalid, Op: op,
				Msg:  fmt.Sprintf("the path of the socket %s has %d bytes; the limit is %d", path, len(path), maxPath),
				Hint: "use a folder with a shorter path"}
		}
		return path, nil
	case len(unfit) > 0:
		return "", &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  strconv.Quote(filepath.Join(folder, unfit[0])) + " is not a socket",
			Hint: "remove it, and let the component create its socket in this folder; links are not followed"}
	}
	return "", &fault.Error{Code: fault.Unavailable, Op: op, Msg: "there is no socket " + name + ".sock in " + folder,
		Hint: "start the component, and let it create its socket there (SDKs read DAPR_COMPONENT_SOCKETS_FOLDER)"}
}

// list returns the files in the folder. It returns fault.TooLarge for more than maxEntries files.
func list(folder string) ([]fs.DirEntry, error) {
	const op = "pluggable.Find"
	d, err := os.OpenFile(folder, os.O_RDONLY|syscall.O_DIRECTORY, 0) // O_DIRECTORY: opening a pipe could block
	if err != nil {
		return nil, &fault.Error{Code: fault.Unavailable, Op: op, Err: err,
			Msg:  "the folder with the sockets of components cannot be read",
			Hint: "create it, or correct --components-sockets-folder"}
	}
	defer d.Close()
	files, err := d.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, &fault.Error{Code: fault.Unavailable, Op: op, Err: err,
			Msg: "the folder with the sockets of components cannot be read"}
	}
	if len(files) > maxEntries {
		return nil, &fault.Error{Code: fault.TooLarge, Op: op,
			Msg:  fmt.Sprintf("the folder %s has more than %d files", folder, maxEntries),
			Hint: "use a folder that has only sockets of components"}
	}
	return files, nil
}
