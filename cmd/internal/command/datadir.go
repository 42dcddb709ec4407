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

// ChooseDir returns the data directory of the node that a command uses. If a node runs in c.Data.Dir, or if
// c.Data.Shared is false, ChooseDir returns c.Data.Dir.
//
// If c.Data.Shared is true, c.Data.Dir is only a default, and this user may run nodes in neighboring directories. So if
// no node runs in c.Data.Dir, ChooseDir searches these directories:
//
//   - If one of them has a running node, ChooseDir returns it.
//   - If several have one, ChooseDir returns fault.Invalid. The user must then choose with --data-dir.
//   - If none has one, ChooseDir returns c.Data.Dir.
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

// Runs reports whether a node runs in a data directory. It connects to the admin socket of the directory. It returns
// false only if there is no socket, or if the connection is refused.
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
