package kv_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// rig is a machine with what a test needs to drive it.
type rig struct {
	t *testing.T
	*kv.Machine
	fatal *fatalSpy
}

// fatalSpy records the errors passed to Options.Fatal.
type fatalSpy struct {
	mu   sync.Mutex
	told []error
	ch   chan error
}

func newFatalSpy() *fatalSpy { return &fatalSpy{ch: make(chan error, 16)} }

func (s *fatalSpy) fatal(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, err)
	s.ch <- err
}

func (s *fatalSpy) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

// logTo returns a logger that writes warnings and errors to the output of the test.
func logTo(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// options returns options whose Fatal fails the test.
func options(t *testing.T, fs vfs.FS) kv.Options {
	return kv.Options{Dir: "db", FS: fs, Logger: logTo(t), Fatal: func(err error) {
		t.Errorf("the machine gave up: %v", err)
	}}
}

// newRig returns a rig whose machine is in memory. The rig records the errors passed to Fatal.
func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOn(t, vfs.NewMem())
}

func rigOn(t *testing.T, fs vfs.FS) *rig {
	t.Helper()
	spy := newFatalSpy()
	o := options(t, fs)
	o.Fatal = spy.fatal
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &rig{t: t, Machine: m, fatal: spy}
}

// entry encodes a batch as the next entry.
func (r *rig) entry(stamp uint64, requests ...command.Request) kv.Entry {
	r.t.Helper()
	return entryOf(r.t, r.Applied()+1, stamp, requests...)
}

func entryOf(t testing.TB, index, stamp uint64, requests ...command.Request) kv.Entry {
	t.Helper()
	data, err := command.Append(nil, &command.Batch{Stamp: stamp, Requests: requests})
	if err != nil {
		t.Fatal(err)
	}
	return kv.Entry{Index: index, Term: 1, Data: data}
}

// do applies requests as one entry and returns their results.
func (r *rig) do(stamp uint64, requests ...command.Request) []kv.Result {
	r.t.Helper()
	out := r.Apply([]kv.Entry{r.entry(stamp, requests...)})
	if out[0].Err != nil {
		r.t.Fatal(out[0].Err)
	}
	return out[0].Results
}

// one works like do, for a single request.
func (r *rig) one(stamp uint64, request command.Request) kv.Result {
	r.t.Helper()
	return r.do(stamp, request)[0]
}

func (r *rig) register(stamp uint64, name string) uint64 {
	r.t.Helper()
	return r.one(stamp, command.Request{Kind: command.KindRegister, Name: name}).Revisions[0]
}

func (r *rig) get(key string, now uint64) kv.Value {
	r.t.Helper()
	v, err := r.Get("s", key, now)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) wantValue(key, want string) {
	r.t.Helper()
	if v := r.get(key, 0); !v.Found || string(v.Value) != want {
		r.t.Errorf("Get(%q) = %+v, want %q", key, v, want)
	}
}

func (r *rig) wantAbsent(key string) {
	r.t.Helper()
	if v := r.get(key, 0); v.Found {
		r.t.Errorf("Get(%q) = %+v, want nothing", key, v)
	}
}

func (r *rig) check() {
	r.t.Helper()
	if err := kv.CheckInvariants(r.Machine); err != nil {
		r.t.Error(err)
	}
}

func write(ops ...command.Op) command.Request {
	return command.Request{Kind: command.KindWrite, Ops: ops}
}

func set(key, value string, change ...func(*command.Op)) command.Op {
	o := command.Op{Kind: command.OpSet, Store: "s", Key: key, Value: []byte(value)}
	for _, c := range change {
		c(&o)
	}
	return o
}

func del(key string, change ...func(*command.Op)) command.Op {
	o := command.Op{Kind: command.OpDelete, Store: "s", Key: key}
	for _, c := range change {
		c(&o)
	}
	return o
}

func ifRevision(rev uint64) func(*command.Op) {
	return func(o *command.Op) { o.Cond, o.Revision = command.CondRevision, rev }
}

func ifAbsent(o *command.Op) { o.Cond = command.CondAbsent }

func ttl(ms uint64) func(*command.Op) { return func(o *command.Op) { o.TTL = ms } }

func expireAt(ms uint64) func(*command.Op) { return func(o *command.Op) { o.ExpireAt = ms } }

func withID(r command.Request, origin, seq, done uint64) command.Request {
	r.ID = command.RequestID{Origin: origin, Seq: seq, Done: done}
	return r
}

func withClient(r command.Request, id string) command.Request {
	r.Client = command.ClientID{Scope: "app", ID: id}
	return r
}

func expire(limit uint32) command.Request {
	return command.Request{Kind: command.KindExpire, Limit: limit}
}

func tick() command.Request { return command.Request{Kind: command.KindTick} }

func dump(t testing.TB, m *kv.Machine) []string {
	t.Helper()
	lines, err := kv.Dump(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(lines, fmt.Sprint(kv.Memory(m)))
}
