package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/internal/testutil"
)

// call sends a request to a node and returns status and body.
func call(n *launcher.Node, method, path, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.Address()+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func save(n *launcher.Node, value string) error {
	status, text, err := call(n, "POST", "/v1.0/state/statestore",
		`[{"key":"k","value":"`+value+`","options":{"consistency":"strong"}}]`)
	if err == nil && status != 204 {
		err = fmt.Errorf("save: %d %s", status, text)
	}
	return err
}

func read(n *launcher.Node, want string) error {
	status, text, err := call(n, "GET", "/v1.0/state/statestore/k?consistency=strong", "")
	if err == nil && (status != 200 || text != `"`+want+`"`) {
		err = fmt.Errorf("read: %d %s", status, text)
	}
	return err
}

// TestCluster_SurvivesLeaderFailure runs make cluster from start to end.
func TestCluster_SurvivesLeaderFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	var out testutil.Output
	c := &cluster{out: launcher.NewLines(&out), binary: labtest.Build(t, "cmd/quorate"), logLevel: "warn"}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- c.run(ctx, ready) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the cluster did not start: %v", err)
	}
	if want := "http://" + c.Nodes[2].Address(); !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
	if !slices.ContainsFunc(c.Nodes, func(n *launcher.Node) bool { // the leader may have changed
		return strings.Contains(out.String(), fmt.Sprintf("kill -9 %d;", n.Pid()))
	}) {
		t.Error("the output does not contain the command that kills the leader")
	}
	testutil.Eventually(t, func() error { return save(c.Nodes[0], "before") })
	testutil.Eventually(t, func() error { return read(c.Nodes[1], "before") })

	theReadMeIsTrue(t, c)

	leader := leaderOf(t, c)
	leader.Kill()
	begin := time.Now()
	rest := others(c, leader)
	testutil.Eventually(t, func() error { return save(rest[0], "after") })
	t.Logf("writes resumed %s after the leader was killed", time.Since(begin).Round(time.Millisecond))
	testutil.Eventually(t, func() error { return read(rest[1], "after") })
	testutil.Eventually(t, func() error {
		if !strings.Contains(out.String(), leader.ID+" has ended: ") {
			return fmt.Errorf("the end of %s was not reported", leader.ID)
		}
		return nil
	})

	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
	for _, n := range c.Nodes {
		if n.Running() {
			t.Errorf("%s still runs", n.ID)
		}
	}
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("the directory was not removed: %v", err)
	}
}

// theReadMeIsTrue runs the commands of the README for three nodes.
func theReadMeIsTrue(t *testing.T, c *cluster) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("curl is not installed: the commands of the README are not run")
		return
	}
	page, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Three nodes")
	section, _, _ = strings.Cut(section, "\n## ")
	port := strings.NewReplacer("localhost:3500", c.Nodes[0].Address(), "localhost:3501", c.Nodes[1].Address())
	var got []string
	for _, line := range regexp.MustCompile(`(?m)^curl .*$`).FindAllString(section, -1) {
		out, err := exec.Command("sh", "-c", port.Replace(line)).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		head, _, _ := strings.Cut(string(out), "\r\n")
		got = append(got, head)
	}
	if want := []string{"HTTP/1.1 204 No Content", "HTTP/1.1 200 OK"}; !slices.Equal(got, want) {
		t.Errorf("the lines answered %q", got)
	}
}

// leaderOf waits until there is a leader, and returns it.
func leaderOf(t *testing.T, c *cluster) (n *launcher.Node) {
	t.Helper()
	testutil.Eventually(t, func() (err error) {
		if n, err = c.Leader(t.Context(), c.Nodes[0]); err == nil && n == nil {
			err = errors.New("there is no leader")
		}
		return err
	})
	return n
}

func others(c *cluster, not *launcher.Node) (out []*launcher.Node) {
	for _, n := range c.Nodes {
		if n != not {
			out = append(out, n)
		}
	}
	return out
}

func TestStart_ReportsAProgramThatExits(t *testing.T) {
	var out testutil.Output
	dir := t.TempDir()
	binary := filepath.Join(dir, "quorate")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho refused >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := &cluster{out: launcher.NewLines(&out), binary: binary, dir: filepath.Join(dir, "kept")}
	err := c.run(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "has ended before the cluster was ready") ||
		!strings.Contains(out.String(), " | refused") {
		t.Errorf("%v; output: %s", err, out.String())
	}
	if _, err := os.Stat(c.dir); err != nil {
		t.Errorf("a chosen directory was not kept: %v", err)
	}
}
