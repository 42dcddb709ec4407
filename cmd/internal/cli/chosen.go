package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// chosen returns the data directory of the node that a command is meant for. That is --data-dir, or otherwise the
// default directory of this user. If no node runs on the default directory, but one runs on a directory beside it,
// that directory is returned. If there are several of these, chosen returns fault.Invalid and asks for --data-dir.
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
