package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/testutil"
)

// server is one node in its own process.
type server struct {
	*launcher.Node
	log testutil.Output
}

// machine is a host on which a test starts servers.
type machine struct {
	t     *testing.T
	dir   string
	http  http.Client
	ports []int // reserved ports that no server uses yet
}

func newMachine(t *testing.T) *machine {
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, http: http.Client{Timeout: 2 * time.Minute,
		Transport: &http.Transport{DisableKeepAlives: true}}}
	for range 24 {
		port, err := freePort()
		must(t, err)
		n, err := strconv.Atoi(port)
		must(t, err)
		m.ports = append(m.ports, n)
	}
	return m
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

// server returns a node with a directory and ports. It does not start the node.
func (m *machine) server(id string) *server {
	s := &server{Node: launcher.Loopback(id, "quorate", filepath.Join(m.dir, id), m.ports[0], m.ports[1])}
	s.Options.Env = append(os.Environ(), "HOME="+m.dir)
	m.ports = m.ports[2:]
	return s
}

// start runs a node until it is killed or the test ends.
func (m *machine) start(s *server, args ...string) {
	m.t.Helper()
	launch(m.t, s.Node, &s.log, args...)
}

// quorate runs a command and returns its output.
func (m *machine) quorate(s *server, args ...string) (out string, ok bool) {
	cmd := exec.Command("quorate", append(args, "--data-dir", s.DataDir)...)
	cmd.Env = append(os.Environ(), "HOME="+m.dir)
	text, err := cmd.CombinedOutput()
	return string(text), err == nil
}

func (m *machine) must(s *server, args ...string) string {
	m.t.Helper()
	out, ok := m.quorate(s, args...)
	if !ok {
		m.t.Fatalf("quorate %s: %s", strings.Join(args, " "), out)
	}
	return out
}

// until retries f for at most a minute.
func (m *machine) until(f func() error) {
	m.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			m.t.Fatalf("not in time: %v", err)
		}
	}
}

// voters waits until s reports the wanted number of voters, and all of them are up to date.
func (m *machine) voters(s *server, want int) {
	m.t.Helper()
	m.until(func() error {
		st, err := s.Status(m.t.Context())
		if err != nil || len(st.Groups) == 0 {
			return fmt.Errorf("status: %+v %w", st, err)
		}
		have := launcher.Voters(st.Groups[0])
		if have != want || !st.Ready {
			return fmt.Errorf("%d voters, ready %v, want %d", have, st.Ready, want)
		}
		return nil
	})
}

func (m *machine) ask(s *server, method, path string, body any) (int, []byte, error) {
	text, err := json.Marshal(body)
	must(m.t, err)
	req, err := http.NewRequest(method, s.Base()+path, bytes.NewReader(text))
	must(m.t, err)
	resp, err := m.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

// save writes keys with strong consistency, a hundred per request.
func (m *machine) save(s *server, values map[string]string) {
	m.t.Helper()
	type item struct {
		Key     string            `json:"key"`
		Value   string            `json:"value"`
		Options map[string]string `json:"options"`
	}
	var items []item
	flush := func() {
		if code, body, err := m.ask(s, "POST", "/v1.0/state/statestore", items); err != nil ||
			code != http.StatusNoContent {
			m.t.Fatalf("save at %s: %d %s %v", s.ID, code, body, err)
		}
		items = nil
	}
	for k, v := range values {
		if items = append(items, item{k, v, map[string]string{"consistency": "strong"}}); len(items) == 100 {
			flush()
		}
	}
	if len(items) > 0 {
		flush()
	}
}

// read reads all keys that may exist, with strong consistency. It returns their values and ETags.
func (m *machine) read(s *server) (values, etags map[string]string) {
	m.t.Helper()
	values, etags = map[string]string{}, map[string]string{}
	for from := 0; from < keys+100; from += 100 {
		var list []string
		for i := range 100 {
			list = append(list, keyOf(from+i))
		}
		code, body, err := m.ask(s, "POST", "/v1.0/state/statestore/bulk?consistency=strong",
			map[string]any{"keys": list})
		var items []struct {
			Key, ETag string
			Data      *string
		}
		if err != nil || code != http.StatusOK || json.Unmarshal(body, &items) != nil {
			m.t.Fatalf("bulk get at %s: %d %.300s %v", s.ID, code, body, err)
		}
		for _, it := range items {
			if it.Data != nil {
				values[it.Key], etags[it.Key] = *it.Data, it.ETag
			}
		}
	}
	return values, etags
}

const keys = 1000

func keyOf(i int) string { return fmt.Sprintf("key-%04d", i) }

func same(t *testing.T, what string, want, got map[string]string) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%s: %d keys, want %d", what, len(got), len(want))
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %s has %d bytes, which differ from the wanted %d", what, k, len(got[k]), len(v))
			return
		}
	}
}

// feed starts a restore at the admin API of s, and sends file as a part of the backup. close ends the body of the
// request. done receives the result of the request.
func (m *machine) feed(s *server, file []byte) (close func(), done chan error) {
	m.t.Helper()
	body, feed := io.Pipe()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.DataDir, "admin.sock"))
	}}}
	done = make(chan error, 1)
	go func() {
		resp, err := client.Post("http://admin/v1/backup", "application/vnd.quorate.backup",
			body) //nolint:noctx // it ends with the node
		if err == nil {
			_ = resp.Body.Close()
			err = fmt.Errorf("answered with %s", resp.Status)
		}
		done <- err
	}()
	_, err := feed.Write(file)
	must(m.t, err)
	return func() { _ = feed.Close() }, done
}

// half sends half of a backup to s, and kills s in the middle of the restore.
func (m *machine) half(s *server, file []byte) {
	m.t.Helper()
	closeFeed, done := m.feed(s, file[:len(file)/2])
	select {
	case err := <-done:
		m.t.Fatalf("the restore ended too early: %v", err)
	case <-time.After(300 * time.Millisecond): // some chunks are in the log
	}
	s.Kill()
	closeFeed()
	<-done
}

// whole sends a whole backup to s, and kills s at about the time when the restore is applied.
func (m *machine) whole(s *server, file []byte, after time.Duration) {
	m.t.Helper()
	closeFeed, done := m.feed(s, file)
	closeFeed()
	select {
	case <-done:
		s.Kill()
	case <-time.After(after):
		s.Kill()
		<-done
	}
}

func TestBackup_SaveRestoreAndRescue(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters of processes")
	}
	m := newMachine(t)
	all := []*server{m.server("n1"), m.server("n2"), m.server("n3")}
	seeds := all[0].Gossip() + "," + all[1].Gossip() + "," + all[2].Gossip()
	run := func(s *server) { m.start(s, "--join", seeds, "--bootstrap-expect", "3") }
	for _, s := range all {
		run(s)
	}
	m.voters(all[0], 3)
	given := map[string]bool{} // every ETag that was returned
	note := func(etags map[string]string) {
		for _, e := range etags {
			given[e] = true
		}
	}

	// Save a thousand keys; then delete half and change the rest.
	first := map[string]string{}
	for i := range keys {
		first[keyOf(i)] = fmt.Sprintf("%d-%s", i, strings.Repeat(string(rune('a'+i%26)), 3000))
	}
	m.save(all[0], first)
	values, etags := m.read(all[1])
	same(t, "before", first, values)
	note(etags)
	file := filepath.Join(m.dir, "backup.qs")
	if out := m.must(all[1], "backup", "save", file); !strings.HasPrefix(out, "Saved 1000 keys") {
		t.Errorf("save: %s", out)
	}
	changed := map[string]string{}
	for i := range keys {
		if i%2 == 0 {
			if code, body, err := m.ask(all[i%3], "DELETE", "/v1.0/state/statestore/"+keyOf(i)+"?consistency=strong",
				nil); err != nil || code != http.StatusNoContent {
				t.Fatalf("delete: %d %s %v", code, body, err)
			}
			continue
		}
		changed[keyOf(i)] = fmt.Sprint("changed ", i)
	}
	changed[keyOf(keys+1)] = "added"
	m.save(all[2], changed)
	values, etags = m.read(all[0])
	same(t, "changed", changed, values)
	note(etags)

	// Kill each node once in the middle of a restore: nothing may change on any node.
	saved, err := os.ReadFile(file)
	must(t, err)
	for _, victim := range all {
		m.half(victim, saved)
		run(victim)
		m.voters(victim, 3)
		values, etags = m.read(victim)
		same(t, "after the kill of "+victim.ID, changed, values)
		note(etags)
	}

	// Kill a node at about the time when the restore is applied: all nodes have the old state, or
	// all have the new one.
	for i, victim := range all[:2] {
		m.whole(victim, saved, time.Duration(5+20*i)*time.Millisecond)
		run(victim)
		m.voters(victim, 3)
		values, etags = m.read(victim)
		note(etags)
		want, what := changed, "the old state"
		if len(values) == len(first) {
			want, what = first, "the new state"
		}
		t.Logf("killed after the last byte: %s", what)
		for _, s := range all {
			values, _ = m.read(s)
			same(t, what+" at "+s.ID, want, values)
		}
	}

	// After a restore, every node has the bytes of the backup, and no ETag that was returned
	// earlier.
	if out := m.must(all[2], "backup", "restore", file, "--yes"); !strings.Contains(out,
		"Restored 1000 keys in 1 group,") {
		t.Errorf("restore: %s", out)
	}
	for _, s := range all {
		values, etags = m.read(s)
		same(t, "restored, at "+s.ID, first, values)
		for k, e := range etags {
			if given[e] {
				t.Fatalf("%s has ETag %s, which was returned before", k, e)
			}
		}
	}

	// Restore into a new cluster with one node. A cluster with another number of partitions
	// refuses.
	fresh := m.server("x1")
	m.start(fresh)
	m.voters(fresh, 1)
	m.must(fresh, "backup", "restore", file, "--yes")
	values, _ = m.read(fresh)
	same(t, "new cluster", first, values)
	other := m.server("x2")
	m.start(other, "--partitions", "3")
	m.voters(other, 1)
	if out, ok := m.quorate(other, "backup", "restore", file, "--yes"); ok ||
		!strings.Contains(out, "the backup has 1 partitions, this cluster has 3 (restore it into a new cluster "+
			"started with --partitions 1)") {
		t.Errorf("other partitions: %s", out)
	}

	// Destroy two of three nodes. Rescue the third, and grow back to three.
	left := all[0]
	if out, ok := m.quorate(left, "rescue", "--yes"); ok || !strings.Contains(out, "is in use by process") {
		t.Errorf("rescue of a running server: %s", out)
	}
	for _, s := range all {
		s.Kill()
	}
	must(t, os.RemoveAll(all[1].DataDir)) // the directory of n3 is used again below
	before, _ := os.ReadFile(filepath.Join(left.DataDir, "node.json"))
	if out := m.must(left, "rescue", "--dry-run"); !strings.Contains(out, "n2.") || !strings.Contains(out, "n3.") {
		t.Errorf("dry run: %s", out)
	}
	if after, _ := os.ReadFile(filepath.Join(left.DataDir, "node.json")); !bytes.Equal(before, after) {
		t.Error("a dry run changed the directory")
	}
	if out := m.must(left, "rescue", "--yes"); !strings.Contains(out, "n1 is now the only voter") {
		t.Errorf("rescue: %s", out)
	}
	if out, ok := m.quorate(left, "rescue", "--yes"); ok || !strings.Contains(out, "nothing to rescue") {
		t.Errorf("a second rescue: %s", out)
	}
	run(left)
	m.voters(left, 1)
	values, etags = m.read(left)
	same(t, "rescued", first, values)
	note(etags)
	m.save(left, map[string]string{keyOf(0): "after the rescue"})
	first[keyOf(0)] = "after the rescue"
	values, etags = m.read(left)
	same(t, "written after the rescue", first, values)
	if given[etags[keyOf(0)]] {
		t.Errorf("ETag %s was given out before", etags[keyOf(0)])
	}
	grown := []*server{m.server("n4"), m.server("n5")}
	for _, s := range grown {
		m.start(s, "--join", left.Gossip())
	}
	m.voters(left, 3)
	values, _ = m.read(grown[1])
	same(t, "grown", first, values)

	// The old member comes back with its directory. It is refused, with a hint.
	old := all[2]
	run(old)
	m.until(func() error {
		code, body, err := m.ask(old, "GET", "/v1.0/healthz", nil)
		if err != nil || code == http.StatusNoContent || !strings.Contains(string(body), "left behind by a rescue") ||
			!strings.Contains(string(body), "move the data directory of n3 away") {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	// The old member keeps this state while the rescued servers are down. No hint suggests a second rescue.
	m.until(func() error {
		if !strings.Contains(old.log.String(), "this server was left behind by a rescue of the cluster") {
			return errors.New("n3 has not noted the newer epoch")
		}
		return nil
	})
	old.Kill()
	for _, s := range append(grown, left) {
		s.Kill()
	}
	run(old)
	m.until(func() error {
		code, body, err := m.ask(old, "GET", "/v1.0/healthz", nil)
		if err != nil || code == http.StatusNoContent || !strings.Contains(string(body), "left behind by a rescue") {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	if out := m.must(old, "status"); strings.Contains(out, "quorate rescue") ||
		!strings.Contains(out, "move its data directory "+old.DataDir+" away") {
		t.Errorf("status of a server that was left behind:\n%s", out)
	}
	old.Kill()
	if out := m.must(old, "rescue", "--dry-run"); !strings.Contains(out, "makes a second cluster") {
		t.Errorf("rescue of a server that was left behind:\n%s", out)
	}
	for _, s := range append(grown, left) {
		run(s)
	}
	must(t, os.RemoveAll(old.DataDir))
	m.start(old, "--join", left.Gossip())
	m.until(func() error {
		code, body, err := m.ask(old, "GET", "/v1.0/healthz", nil)
		if err != nil || code != http.StatusNoContent {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	values, _ = m.read(old)
	same(t, "emptied and joined again", first, values)
}
