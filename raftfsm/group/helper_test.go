package group

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"

	wal "github.com/hashicorp/raft-wal"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func TestMain(m *testing.M) {
	wal.DefaultSegmentSize = 16 << 10 // many small segments, because raft-wal deletes only whole segments
	goleak.VerifyTestMain(m)
}

const patience = 2 * time.Minute // time limit for a test that hangs

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

// eventually polls until check passes.
func eventually(t testing.TB, check func() error) { t.Helper(); testutil.Eventually(t, check) }

// until polls until cond is true; what describes the failure.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	eventually(t, func() error {
		if !cond() {
			return errors.New(what)
		}
		return nil
	})
}

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (code %q), want code %q", err, fault.CodeOf(err), code)
	}
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// alone returns options for a group of one server in dir.
func alone(t testing.TB, dir string) Options {
	_, tr := raft.NewInmemTransport("a")
	return Options{
		Dir: dir, ServerID: "a", Transport: tr, Bootstrap: true, MemTable: 1 << 20,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
}

// openGroup opens a group, and closes it when the test ends.
func openGroup(t testing.TB, o Options) *Group {
	t.Helper()
	g, err := Open(limited(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeGroup(t, g) })
	return g
}

func closeGroup(t testing.TB, g *Group) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

const store = "ns/store"

func setRequest(key, value string) *command.Request {
	return &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet, Store: store, Key: key,
		Value: []byte(value)}}}
}

func encoded(t testing.TB, r *command.Request) Encoded {
	t.Helper()
	b, err := command.AppendRequest(nil, r)
	must(t, err)
	return b
}

func put(t testing.TB, g *Group, key, value string) Answer {
	t.Helper()
	a, err := g.ProposeRequest(limited(t), setRequest(key, value), Committed)
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	if a.Result.Outcome != kv.Applied {
		t.Fatalf("put %s: %s", key, a.Result.Outcome)
	}
	return a
}

// peekValue reads key from the local machine; "" if it is absent.
func peekValue(t testing.TB, g *Group, key string) string {
	t.Helper()
	for {
		m := g.Machine()
		v, err := m.Get(store, key, 0)
		if fault.Is(err, fault.Unavailable) && m != g.Machine() {
			continue
		}
		must(t, err)
		return string(v.Value)
	}
}

// copySteady copies a directory that other goroutines may be changing. It repeats the copy until no file was created,
// removed or resized meanwhile. Otherwise the manifest of Pebble in the copy might name a table that the copy lacks.
func copySteady(t testing.TB, from, to string) {
	t.Helper()
	for range 1000 {
		before := sizes(t, from)
		testutil.CopyTree(t, from, to)
		if maps.Equal(before, sizes(t, from)) {
			return
		}
		must(t, os.RemoveAll(to))
	}
	t.Fatal("the directory changes all the time: " + from)
}

// sizes returns the size of each file below a directory.
func sizes(t testing.TB, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			out[path] = info.Size()
		}
		return nil
	}))
	return out
}

// names lists the files of a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func key(i int) string { return fmt.Sprintf("k%04d", i) }

func engines(t *testing.T, f func(t *testing.T, e raftlog.Engine)) {
	for _, e := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(e), func(t *testing.T) { f(t, e) })
	}
}

// Functions for files on the file system of the operating system, and for raft's stores.

func readManifest(dir string) (*snapshot.Manifest, error) {
	return snapshot.LoadManifest(raftlog.OSVolume{}, dir)
}

// castVote stores a vote as raft does: in two calls.
func castVote(t testing.TB, s raft.StableStore, term uint64, candidate string) {
	t.Helper()
	must(t, s.SetUint64([]byte("LastVoteTerm"), term))
	must(t, s.Set([]byte("LastVoteCand"), []byte(candidate)))
}

// heartbeat makes a heartbeat of leader in term, and the channel for its response.
func heartbeat(term uint64, leader string) (raft.RPC, chan raft.RPCResponse) {
	answer := make(chan raft.RPCResponse, 1)
	return raft.RPC{RespChan: answer, Command: &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader), Addr: []byte(leader)},
		Term:      term,
	}}, answer
}
