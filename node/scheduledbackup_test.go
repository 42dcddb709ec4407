package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/backup"
)

// whole returns nil if the newest backup of a directory is complete and has data.
func whole(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "default-*.qs"))
	if err != nil || len(names) == 0 {
		return fmt.Errorf("no backup: %w", err)
	}
	f, err := os.Open(names[len(names)-1])
	if err != nil {
		return err // the backup may have been removed in the meantime
	}
	defer func() { _ = f.Close() }()
	sum, err := backup.Inspect(f, func(id string) (string, string) { return "", id })
	if err == nil && sum.Totals.Keys == 0 {
		err = errors.New("it has no key")
	}
	return err
}

func TestScheduledBackups_ContinueAfterLeaderStops(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for an election")
	}
	dir := t.TempDir()
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) {
		c.Backup = node.Backup{Directory: dir, Every: time.Second, Keep: 3}
	})
	if code, body := save(t, nodes[0], "k", "v"); code != 204 {
		t.Fatalf("%d %s", code, body)
	}
	nodetest.Poll(t, func() error { return whole(dir) })
	at := leads(t, nodes)
	gone := status(t, nodes[at]).Node.ID
	closeNode(t, nodes[at])
	rest := append(append([]*node.Node{}, nodes[:at]...), nodes[at+1:]...)
	for _, n := range rest {
		nodetest.Poll(t, func() error {
			b := status(t, n).Backup
			if b == nil || b.Last == nil || !b.Last.Verified || b.Last.Node == gone {
				return fmt.Errorf("%+v", b)
			}
			return nil
		})
	}
	nodetest.Poll(t, func() error {
		if names, err := filepath.Glob(filepath.Join(dir, "*.qs")); err != nil || len(names) > 4 {
			return fmt.Errorf("%q %w", names, err)
		}
		return whole(dir)
	})
}
