package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// chosen is the data directory of the node that a command is about. Without --data-dir it
// is the one that nodes of this user share; if no node runs on that, it is the one of the
// only node that runs beside it, started with --join. Of several one must be named.
func chosen(ctx context.Context, c node.Config) (string, error) {
	dir := c.Data.Dir
	if !c.Data.Shared || runs(ctx, dir) {
		return dir, nil
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return dir, nil // nothing is there, and asking says so
	}
	var found []string
	for _, e := range entries {
		if other := filepath.Join(filepath.Dir(dir), e.Name()); e.IsDir() && runs(ctx, other) {
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
		Code: fault.Invalid, Op: "cli.chosen", Msg: "several nodes of this user run",
		Hint: "name the data directory of one: --data-dir " + strings.Join(found, ", or --data-dir "),
	}
}
