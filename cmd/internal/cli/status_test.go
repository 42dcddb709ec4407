package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/datadir"
)

func TestStatusAndStores_Text(t *testing.T) {
	c := newConsole(t)
	s := c.start("--app-id", "orders")
	defer c.stop(s)
	golden(t, "testdata/status.txt", c.run("status").stdout)
	golden(t, "testdata/stores.txt", c.run("stores").stdout)
}

func TestStatusAndStores_JSON(t *testing.T) {
	c := newConsole(t)
	dir := filepath.Join(c.home, "data")
	s := c.start("--data-dir", dir)
	defer c.stop(s)
	var status schema.NodeStatus
	if err := json.Unmarshal([]byte(c.run("status", "--json", "--data-dir", dir).stdout), &status); err != nil ||
		status.Groups[0].Keys != 42 {
		t.Errorf("%+v, %v", status, err)
	}
	var stores []schema.StoreStatus
	if err := json.Unmarshal([]byte(c.run("stores", "-o", "json", "--data-dir", dir).stdout), &stores); err != nil ||
		len(stores) != 2 {
		t.Errorf("%+v, %v", stores, err)
	}
}

// TestStatus_SaysWhereApplicationsAre checks the status after a takeover. The node on the shared directory then serves
// no application.
func TestStatus_SaysWhereApplicationsAre(t *testing.T) {
	c := newConsole(t)
	open := c.open
	c.open = func(ctx context.Context, config node.Config, log *slog.Logger) (cli.Node, error) {
		n, err := open(ctx, config, log)
		if n, ok := n.(*memoryNode); ok {
			n.addresses.SharedDir = "/home/me/local"
			n.status.Node.Apps = nil
			n.status.Node.Front = &schema.FrontNode{DataDir: "/run/at-1", Apps: []string{"payments"}}
		}
		return n, err
	}
	s := c.start()
	defer c.stop(s)
	const want = "Applications  payments, at the sidecar of this process: quorate status --data-dir " +
		"/run/at-1 (this node holds only the data)\n"
	if got := c.run("status").stdout; !strings.Contains(got, want) {
		t.Errorf("status without %q:\n%s", want, got)
	}
	const banner = "  Shared   /home/me/local (another node of this user holds this data; when it ends, this one " +
		"takes over)\n"
	eventually(t, func() bool { return strings.Contains(s.stdout.String(), banner) })
}

func TestStatus_FindsTheSocketOfALongDataDirectory(t *testing.T) {
	c := newConsole(t)
	dir := filepath.Join(c.home, strings.Repeat("d", 100))
	s := c.start("--data-dir", dir)
	defer c.stop(s)
	if r := c.run("stores", "--data-dir", dir); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestStatus_FindsTheOnlyRunningNode runs nodes in other data directories than the default one, as after a start with
// --join.
func TestStatus_FindsTheOnlyRunningNode(t *testing.T) {
	c := newConsole(t)
	dir := filepath.Join(c.home, ".local", "state", "quorate", "default")
	a := c.start("--data-dir", filepath.Join(dir, "a"))
	if r := c.run("status"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	other := *c
	other.signals = make(chan os.Signal, 2)
	b := other.start("--data-dir", filepath.Join(dir, "b"))
	c.want(1, "", "this user runs several nodes (choose one: --data-dir "+filepath.Join(dir, "a")+", or --data-dir "+
		filepath.Join(dir, "b")+")", "status")
	if r := c.run("status", "--data-dir", filepath.Join(dir, "b")); r.code != 0 {
		t.Errorf("%+v", r)
	}
	c.want(1, "", "no node runs on", "status", "--data-dir", filepath.Join(dir, "none"))
	c.stop(a)
	other.stop(b)
}

func TestStatus_WithoutANode(t *testing.T) {
	c := newConsole(t)
	c.want(1, "", "no node runs on "+filepath.Join(c.home, ".local/state/quorate/blue/local")+
		" (start one with: quorate run; or choose another with --data-dir or --cluster)", "status", "--cluster", "blue")
	c.stop(c.start())
	c.want(1, "", "no node runs on", "status")
	c.env = []string{"HOME="}
	c.want(2, "", "the data directory is unknown (name it with --data-dir)", "status")
}

// TestStatus_SaysThatANodeStarts checks the status while a node starts. The node then has the lock of its directory,
// and no admin socket yet.
func TestStatus_SaysThatANodeStarts(t *testing.T) {
	c := newConsole(t)
	dir := t.TempDir()
	c.want(1, "", "no node runs on "+dir, "status", "--data-dir", dir)
	l, err := datadir.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Release() }()
	c.want(1, "", fmt.Sprintf("the node on %s is starting or stopping (process %d)", dir, os.Getpid()),
		"status", "--data-dir", dir)
}
