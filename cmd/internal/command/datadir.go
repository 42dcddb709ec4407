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

// ChooseDir returns the data directory of the node that a command uses. This is c.Data.Dir, unless c.Data.Shared is
// true and no node runs there. In that case, ChooseDir searches the neighboring directories:
//
//   - If a node runs in exactly one of them, ChooseDir returns that directory.
//   - If nodes run in several of them, it returns fault.Invalid. The user must then choose with --data-dir.
//   - If no node runs, it returns c.Data.Dir.
func ChooseDir(ctx context.Context, c node.Config) (string, error) {
	dir := c.Data.Dir
	if !c.Data.Shared || Runs(ctx, dir) {
		return dir, nil
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return dir, nil // no node runs, and the request of the command will report that
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

// Runs reports whether a node runs in a data directory, by connecting to the admin socket. It returns false only if
// there is no socket, the connection is refused, or the directory cannot be read.
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
