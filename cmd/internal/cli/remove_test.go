package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

func TestRemove_ReportsWhatItWaitsFor(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "n2 (server n2.5a) is removed from the cluster.\n", "", "remove", "n2")
	c.want(1, "", "n3 is not removed yet: group 1: n4 takes its place (it continues on its own", "remove", "n3",
		"--wait", "1ms")
	c.want(0, "n5 (server n5.7c) is removed from the cluster.\n", "", "remove", "n5")
	c.want(1, "", "no server n9 is known", "remove", "n9")
	c.want(2, "", "accepts 1 arg", "remove")
	var r schema.RemoveResult
	if err := json.Unmarshal([]byte(c.run("remove", "n2", "--json").stdout), &r); err != nil || !r.Done ||
		r.ServerID != "n2.5a" {
		t.Errorf("%+v, %v", r, err)
	}
	c.want(0, "n1 (server n1.4f) is removed from the cluster.\n", "", "leave")
}

func TestDoctor_FailsIfACheckFails(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	got := c.run("doctor")
	if got.code != 1 || !strings.Contains(got.stdout, "FAIL") || !strings.Contains(got.stdout, "NTP") ||
		!strings.Contains(got.stderr, "a check has failed") {
		t.Errorf("%+v", got)
	}
	var found schema.Checkup
	if err := json.Unmarshal([]byte(c.run("doctor", "--json").stdout), &found); err != nil ||
		len(found.Checks) != 2 || found.Node != "n1" {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestDoctor_WithoutANodeChecksTheStart(t *testing.T) {
	c := newConsole(t)
	dir := filepath.Join(t.TempDir(), "absent", "data")
	got := c.run("doctor", "--json", "--data-dir", dir, "--http-port", "0", "--gossip-port", "0", "--peer-port", "0",
		"--min-free-disk", "128Mi")
	var found schema.Checkup
	if err := json.Unmarshal([]byte(got.stdout), &found); err != nil || found.Node != "" {
		t.Fatalf("%s, %v", got.stdout, err)
	}
	seen := map[string]bool{}
	for _, r := range found.Checks {
		seen[r.Check] = true
	}
	for _, want := range []string{"settings", "free space", "disk sync", "open files", "port"} {
		if !seen[want] {
			t.Errorf("%q was not examined: %+v", want, found.Checks)
		}
	}
	got = c.run("doctor", "--role", "sidecar", "--data-dir", dir)
	if got.code != 1 || !strings.Contains(got.stdout, "--join") {
		t.Errorf("settings that cannot be: %+v", got)
	}
}

// TestRemove_OfANodeThatCrashes checks that the error names a removal that may have begun, although the command finds
// no node when it repeats the request.
func TestRemove_OfANodeThatCrashes(t *testing.T) {
	c := newConsole(t)
	l, err := net.Listen("unix", filepath.Join(c.home, "admin.sock"))
	must(t, err)
	go func() {
		conn, err := l.Accept()
		_ = l.Close()
		if err == nil {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_ = conn.Close()
		}
	}()
	c.want(1, "", "ended before its answer; the change may have been made", "remove", "n2.0123456789abcdef",
		"--data-dir", c.home)
}

// TestRemove_FailsAfterALostAnswer checks that the failure of a repeated request does not hide that an earlier request
// may have begun the removal.
func TestRemove_FailsAfterALostAnswer(t *testing.T) {
	c := newConsole(t)
	l, err := net.Listen("unix", filepath.Join(c.home, "admin.sock"))
	must(t, err)
	var requests atomic.Int32
	var second atomic.Pointer[fault.Error]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler) // closes the connection
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(fault.Marshal(second.Load()))
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	for _, code := range []fault.Code{fault.Timeout, fault.Overloaded} {
		second.Store(fault.New(code, "test.Remove", "group 0 does not answer"))
		for wait := 100 * time.Millisecond; ; wait *= 2 {
			requests.Store(0)
			got := c.run("remove", "n2.0123456789abcdef", "--wait", wait.String(), "--data-dir", c.home)
			if requests.Load() < 2 {
				continue // the first request took too long
			}
			const want = "ended before its answer; the change may have been made"
			if got.code != 1 || !strings.Contains(got.stderr, want) {
				t.Errorf("%s: %+v", code, got)
			}
			break
		}
	}
}

// TestRemove_LosesTheLeaderAfterItHasBegun checks that a removal which the node has accepted is not reported as
// unavailable, because it may be completed without the command.
func TestRemove_LosesTheLeaderAfterItHasBegun(t *testing.T) {
	c := newConsole(t)
	l, err := net.Listen("unix", filepath.Join(c.home, "admin.sock"))
	must(t, err)
	var requests atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			_, _ = io.WriteString(w, `{"node":"n2","serverId":"n2.0123456789abcdef","groups":[{"group":0,`+
				`"reason":"n3 takes its place"}]}`)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(fault.Marshal(fault.New(fault.Unavailable, "test.Remove", "group 0 has no leader")))
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		requests.Store(0)
		got := c.run("remove", "n2", "--wait", wait.String(), "--data-dir", c.home)
		if requests.Load() < 2 {
			continue // the first answer came too late
		}
		const want = "the removal may have been completed: group 0 has no leader"
		if got.code != 1 || !strings.Contains(got.stderr, want) ||
			!strings.Contains(got.stderr, "repeat the command with the server id n2.0123456789abcdef") {
			t.Errorf("%+v", got)
		}
		return
	}
}

// TestRemove_RepeatsOnlyByServerID checks that a removal whose answer was lost is repeated only if it names the server
// by its server id. The node id may already belong to another server, which replaces the removed one.
func TestRemove_RepeatsOnlyByServerID(t *testing.T) {
	c := newConsole(t)
	l, err := net.Listen("unix", filepath.Join(c.home, "admin.sock"))
	must(t, err)
	var requests atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler) // closes the connection
		}
		_, _ = io.WriteString(w, `{"node":"n2","serverId":"n2.0123456789abcdef","done":true}`)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	for _, id := range []string{"n2", "n2.example.org", "n2.01234567"} {
		requests.Store(0)
		c.want(1, "", "(look at quorate members; if the server", "remove", id, "--data-dir", c.home)
		if n := requests.Load(); n != 1 {
			t.Errorf("%s: %d requests", id, n)
		}
	}
	const removed = "n2 (server n2.0123456789abcdef) is removed from the cluster.\n"
	for _, args := range [][]string{{"remove", "n2.0123456789abcdef"}, {"leave"}} {
		requests.Store(0)
		c.want(0, removed, "", append(args, "--data-dir", c.home)...)
		if n := requests.Load(); n != 2 {
			t.Errorf("%s: %d requests", args, n)
		}
	}
}
