package launcher_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script writes a shell script that a test runs instead of quorate.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quorate")
	testutil.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

func TestProcess_StartsAgainAfterItsEnd(t *testing.T) {
	p := &launcher.Process{Options: child.Options{Command: []string{"sh", "-c", "exec sleep 600"}}}
	if p.Running() || p.Current() != nil {
		t.Error("it runs before its start")
	}
	p.Signal(syscall.SIGTERM) // does nothing
	p.Kill()
	testutil.Must(t, p.Stop())
	testutil.Must(t, p.Start())
	if err := p.Start(); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second start: %v", err)
	}
	first := p.Current()
	p.Kill()
	if p.Running() || first.ExitCode() != 128+int(syscall.SIGKILL) {
		t.Errorf("after a kill: running %v, code %d", p.Running(), first.ExitCode())
	}
	testutil.Must(t, p.Start())
	if p.Current() == first || !p.Running() || p.Pid() == first.Pid() {
		t.Error("the second incarnation is the first one")
	}
	testutil.Must(t, launcher.StopAll(p))
	<-p.Ended()
}

func TestProcess_EndReportsOneThatGoesOn(t *testing.T) {
	var out testutil.Output
	p := &launcher.Process{Options: child.Options{Command: []string{"sh", "-c",
		"trap '' TERM; echo up; while :; do sleep 0.05; done"}, Stdout: &out}}
	testutil.Must(t, p.Start())
	defer p.Kill()
	testutil.Eventually(t, func() error {
		if !strings.Contains(out.String(), "up") {
			return os.ErrNotExist
		}
		return nil
	})
	if err := p.End(syscall.SIGTERM, time.Millisecond); err == nil || !strings.Contains(err.Error(), "goes on") {
		t.Errorf("SIGTERM: %v", err)
	}
	if err := p.End(syscall.SIGKILL, time.Minute); err != nil || p.Running() {
		t.Errorf("SIGKILL: %v", err)
	}
}

func TestProcess_ShellQuotes(t *testing.T) {
	p := launcher.Process{Options: child.Options{Command: []string{"/bin/a b/quorate", "run", "it's", ""}}}
	if got, want := p.Shell(), `'/bin/a b/quorate' run 'it'\''s' ''`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNode_GivesFlagsInOrder(t *testing.T) {
	var out testutil.Output
	n := launcher.Loopback("n1", script(t, `echo "$@"`), "/data", 3500, 7946)
	n.Options.Stdout = &out
	testutil.Must(t, n.Start("--app-id", "a", "--", "app"))
	<-n.Ended()
	if got, want := out.String(), "run --node-id n1 --data-dir /data --bind-address 127.0.0.1 --http-port 3500 "+
		"--gossip-port 7946 --peer-port 0 --grpc-port 0 --metrics-port 0 --app-id a -- app\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNode_CommandFailsWithItsMessage(t *testing.T) {
	n := launcher.Loopback("n1", script(t, `echo "no $1 of $3" >&2; exit 1`), "/data", 3500, 7946)
	if _, err := n.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "no status of --data-dir") {
		t.Errorf("%v", err)
	}
}

func TestNew_ReplacesATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	plan := launcher.Plan{Program: "quorate", Dir: t.TempDir(), Size: 1, FirstPort: port}
	c, err := launcher.New(t.Context(), plan)
	if err != nil || c.Nodes[0].HTTPPort == port {
		t.Errorf("the taken port %d is used: %v", port, err)
	}
	testutil.Must(t, l.Close())
	if c, err = launcher.New(t.Context(), plan); err != nil || c.Nodes[0].HTTPPort != port {
		t.Errorf("the free port %d is not used: %v", port, err)
	}
}

func TestCluster_FormedReportsANodeThatEnds(t *testing.T) {
	c, err := launcher.New(t.Context(), launcher.Plan{Program: script(t, "exit 1"), Dir: t.TempDir(), Size: 2})
	testutil.Must(t, err)
	for _, n := range c.Nodes {
		testutil.Must(t, n.Start())
		<-n.Ended()
	}
	waiting := ""
	err = c.Formed(t.Context(), func(what string) { waiting = what })
	if err == nil || !strings.Contains(err.Error(), "n1 has ended before the cluster was ready") || waiting == "" {
		t.Errorf("%v; waiting: %q", err, waiting)
	}
	testutil.Must(t, c.Stop())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Leader(ctx, c.Nodes[0]); err == nil {
		t.Error("a node that has ended knows a leader")
	}
}
