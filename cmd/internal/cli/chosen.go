package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// chosen returns the data directory of the node to which a command is sent. That is the value of --data-dir, or
// otherwise the default directory of this user. If no node runs in the default directory but exactly one runs in a
// sibling directory, chosen returns that directory. If several run in sibling directories, chosen returns
// fault.Invalid and requests --data-dir.
func chosen(ctx context.Context, c node.Config) (string, error) {
	dir := c.Data.Dir
	if !c.Data.Shared || runs(ctx, dir) {
		return dir, nil
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return dir, nil // no node runs; the request to it will report that
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
		Code: fault.Invalid, Op: "cli.chosen", Msg: "this user runs several nodes",
		Hint: "choose one: --data-dir " + strings.Join(found, ", or --data-dir "),
	}
}
