package raftfsm_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

func TestOpen_DirectoryThatOthersCanWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, root string) (dir string)
		refused bool
		warned  string // path that the warning names, below root
	}{
		"private":        {prepare: made(0o755, 0o700)},
		"read by others": {prepare: made(0o755, 0o755)},
		"all write it":   {prepare: made(0o755, 0o777), refused: true},
		"all write it, and only their own files go":       {prepare: made(0o755, 0o777|os.ModeSticky), refused: true},
		"all write above it":                              {prepare: made(0o777, 0o700), warned: "up"},
		"all write above it, and only their own files go": {prepare: made(0o777|os.ModeSticky, 0o700)},
		"a link to one that all write": {refused: true, prepare: func(t *testing.T, root string) string {
			return link(t, root, made(0o755, 0o777)(t, root))
		}},
		"a link to one below what all write": {warned: "up", prepare: func(t *testing.T, root string) string {
			return link(t, root, made(0o777, 0o700)(t, root))
		}},
		"a link that all can replace": {warned: "links", prepare: func(t *testing.T, root string) string {
			links := filepath.Join(root, "links")
			must(t, os.Mkdir(links, 0o700))
			must(t, os.Chmod(links, 0o777))
			return link(t, links, made(0o755, 0o700)(t, root))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			o := options(t, c.prepare(t, root))
			var logged bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
			h, _, err := tryOpen(t, o)
			if c.refused {
				if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Text(err), "chmod go-w "+o.Dir) {
					t.Errorf("got %v", err)
				}
				return
			}
			must(t, err)
			closeHost(t, h)
			about := strings.Contains(logged.String(), "can be written by others")
			if about != (c.warned != "") || c.warned != "" && !strings.Contains(logged.String(), "chmod go-w "+
				filepath.Join(root, c.warned)) {
				t.Errorf("logged %s", logged.String())
			}
		})
	}
}

// made returns a function that creates a directory with the given mode, inside of a directory with the mode above.
func made(above, mode os.FileMode) func(*testing.T, string) string {
	return func(t *testing.T, root string) string {
		up, dir := filepath.Join(root, "up"), filepath.Join(root, "up", "data")
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.Chmod(dir, mode))
		must(t, os.Chmod(up, above))
		return dir
	}
}

func link(t *testing.T, in, to string) string {
	t.Helper()
	path := filepath.Join(in, "link")
	must(t, os.Symlink(to, path))
	return path
}
