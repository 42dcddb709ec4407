package command

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// ChooseDir returns the data directory of the node for a command. This is the value of --data-dir, or the default
// directory of this user. The user may run several nodes, whose default directories are beside each other. If no node
// runs in the default directory, ChooseDir returns the directory beside it in which a node runs. If there are several,
// it returns fault.Invalid, and the user must give --data-dir.
func ChooseDir(ctx context.Context, c node.Config) (string, error) {
	dir := c.Data.Dir
	if !c.Data.Shared || Runs(ctx, dir) {
		return dir, nil
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return dir, nil // no node runs; the request to it will report that
	}
	var found []string
	for _, e := range entries {
		if other := filepath.Join(filepath.Dir(dir), e.Name()); e.IsDir() && Runs(ctx, other) {
			found = append(found, other)
		}
	}
	switch len(found) {
	case 0:
		return dir, nil
	case 1:
		return found[0], nil
	}
	return "", &fault.Error{
		Code: fault.Invalid, Op: "cli.datadir", Msg: "this user runs several nodes",
		Hint: "choose one: --data-dir " + strings.Join(found, ", or --data-dir "),
	}
}

// Runs reports whether a process listens on the admin socket of a data directory.
func Runs(ctx context.Context, dir string) bool {
	path, err := adminapi.FindSocket(dir)
	if err != nil {
		return false
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	c, err := dialUnix(ctx, path)
	if err == nil {
		_ = c.Close() // nothing was sent
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}
