package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/records"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// simKeeper is a keeper of records at one server.
type simKeeper interface {
	RecordWatcher
	Attach(g records.Group)
	Serve(ctx context.Context, r *lenprefix.Reader) ([]byte, error)
	Close()
}

// simService is what the servers do besides storing keys.
type simService struct {
	// open returns the keeper of an incarnation of a server, and sets it in o. a is the access of that server.
	open func(o *Options, a *simAccess) simKeeper
	// stores reports whether a call stores values, so that it is refused while the group is read-only.
	stores func(body []byte) bool
}

// simRecordGroup is a group as keepers of records use it.
type simRecordGroup struct{ *Group }

var (
	_ simKeeper      = (*topics.Keeper)(nil)
	_ simKeeper      = (*workflows.Keeper)(nil)
	_ records.Group  = simRecordGroup{}
	_ records.Access = (*simAccess)(nil)
)

// Commit implements records.Group.
func (g simRecordGroup) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	a, err := g.ProposeRequest(ctx, r, Committed)
	return a.Result, err
}

// Confirm implements records.Group.
func (g simRecordGroup) Confirm(ctx context.Context) error {
	ri, err := g.ReadIndex(ctx)
	if err != nil {
		return err
	}
	return g.WaitApplied(ctx, ri.Index)
}

// The time limits of calls to servers. A call that waits for messages takes up to 5 s. A call that waits for a
// workflow may take longer; its caller repeats it.
const (
	simAskTimeout   = 6 * time.Second
	simWriteTimeout = time.Second
)

// simAccess sends calls of a node without a replica, or of a server, to the servers. A node uses the links of a
// server, so both are cut off together. A call that arrives late is executed even after its caller has given up.
type simAccess struct {
	s    *sim
	home func() raft.ServerID // the server whose links the node uses
	name string               // name of the origin of its requests
	dead chan struct{}        // closed when the node has ended

	writing chan struct{} // capacity 1; a lock for writes. While a goroutine waits for a mutex, virtual time stops
	origin  command.RequestID

	mu   sync.Mutex
	rnd  *rand.Rand    // guarded by mu
	last raft.ServerID // server that has answered last; empty = none; guarded by mu
}

// newAccess returns the access of a new incarnation of a node. The node uses the links of the server with the index
// home in sim.ids.
func (s *sim) newAccess(home int) *simAccess {
	return s.accessOf(make(chan struct{}), func() raft.ServerID {
		ids := s.ids()
		return ids[home%len(ids)]
	})
}

// serverAccess returns the access of an incarnation of a server.
func (s *sim) serverAccess(w *simWire) *simAccess {
	return s.accessOf(w.down, func() raft.ServerID { return w.id })
}

func (s *sim) accessOf(dead chan struct{}, home func() raft.ServerID) *simAccess {
	number := s.accesses.Add(1)
	return &simAccess{s: s, home: home, name: fmt.Sprint("node ", number), dead: dead,
		writing: make(chan struct{}, 1), rnd: rand.New(rand.NewPCG(s.seed, 1000+number))}
}

func (a *simAccess) chance(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rnd.IntN(n)
}

func (a *simAccess) ended() bool {
	select {
	case <-a.dead:
		return true
	default:
		return false
	}
}

// pick chooses a server, mostly one that considers itself the leader. It prefers the server that has answered last.
// It returns false if the chosen server is down.
func (a *simAccess) pick() (raft.ServerID, life, bool) {
	id := raft.ServerID("")
	if a.chance(5) > 0 {
		a.mu.Lock()
		last := a.last
		a.mu.Unlock()
		if l, ok := a.s.life(last); ok && l.group.Leading() {
			return last, l, true
		}
		id, _ = a.s.leader()
	}
	if id == "" {
		ids := a.s.ids()
		id = ids[a.chance(len(ids))]
	}
	l, ok := a.s.life(id)
	return id, l, ok
}

// whole reports whether a message from the node reaches a server. If back is true, it reports whether a message from
// the server reaches the node.
func (a *simAccess) whole(id raft.ServerID, back bool) bool {
	home := a.home()
	switch {
	case a.ended():
		return false
	case home == id:
		return true
	case back:
		return a.s.net.whole(id, home)
	}
	return a.s.net.whole(home, id)
}

// simCall repeats a call to a server, mostly the leader, until it is answered or ctx ends. The result repeated is true
// if an attempt without an answer may have been executed.
func simCall[T any](ctx context.Context, a *simAccess, limit time.Duration, f func(context.Context, life) (T, error)) (
	value T, repeated bool, err error) {
	for {
		if value, err = simTry(ctx, a, limit, f); err == nil {
			return value, repeated, nil
		}
		switch fault.CodeOf(err) {
		case fault.Indeterminate:
			repeated = true
		case fault.NotLeader, fault.Unavailable:
		default:
			return value, repeated, err
		}
		if ctx.Err() != nil || a.ended() {
			return value, repeated, err
		}
		after(time.Duration(5+a.chance(40)) * time.Millisecond)
	}
}

func simTry[T any](ctx context.Context, a *simAccess, limit time.Duration, f func(context.Context, life) (T, error)) (T,
	error) {
	var none T
	id, l, ok := a.pick()
	if !ok || a.ended() {
		after(a.s.net.delay(false, false))
		return none, fault.New(fault.Unavailable, "test", "the server is down")
	}
	answer := make(chan reply[T], 1)
	a.s.net.work.Go(func() {
		after(a.s.net.delay(false, false))
		if l.wire.dead() || !a.whole(id, false) {
			return
		}
		serving, cancel := context.WithTimeout(context.Background(), 2*limit)
		defer cancel()
		value, err := f(serving, l)
		after(a.s.net.delay(false, false))
		if !l.wire.dead() && a.whole(id, true) {
			answer <- reply[T]{value, err}
		}
	})
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case r := <-answer:
		if r.err == nil {
			a.mu.Lock()
			a.last = id
			a.mu.Unlock()
		}
		return r.value, r.err
	case <-t.C:
	case <-l.wire.down:
	case <-a.dead:
	case <-ctx.Done():
	}
	a.mu.Lock()
	a.last = ""
	a.mu.Unlock()
	return none, fault.New(fault.Indeterminate, "test", "the answer is lost")
}

// Locate implements records.Access.
func (a *simAccess) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

// Groups implements records.Access.
func (a *simAccess) Groups(context.Context) (uint32, error) { return 1, nil }

// Token implements records.Access.
func (a *simAccess) Token(uint32, raftlog.Position) string { return "" }

// WithID implements records.Access. Topics and workflows do not use it.
func (a *simAccess) WithID(context.Context, uint32, func(command.RequestID) (bool, error)) error {
	return fault.New(fault.Unimplemented, "test", "not simulated")
}

// Write implements records.Access.
func (a *simAccess) Write(ctx context.Context, _ uint32, r *command.Request) (kv.Result, error) {
	a.writing <- struct{}{}
	defer func() { <-a.writing }()
	if a.origin.Origin == 0 {
		res, _, err := a.propose(ctx, &command.Request{Kind: command.KindRegister, Name: a.name})
		if err != nil {
			return kv.Result{}, fault.New(fault.Unavailable, "test", "the write was not started")
		}
		a.origin.Origin = res.Revisions[0]
	}
	a.origin.Seq++
	r.ID = a.origin
	res, repeated, err := a.propose(ctx, r)
	a.origin.Done = a.origin.Seq // the request is not sent again
	switch {
	case err != nil && repeated:
		return res, fault.New(fault.Indeterminate, "test", "the write may have been applied")
	case err == nil && res.Outcome != kv.Applied && res.Outcome != kv.Conflict:
		a.s.fail("request %+v was decided as %s", r.ID, res.Outcome)
	}
	return res, err
}

func (a *simAccess) propose(ctx context.Context, r *command.Request) (kv.Result, bool, error) {
	return simCall(ctx, a, simWriteTimeout, func(ctx context.Context, l life) (kv.Result, error) {
		if err := a.s.admits(r.Kind == command.KindWrite); err != nil {
			return kv.Result{}, err
		}
		return simRecordGroup{l.group}.Commit(ctx, r)
	})
}

// admits returns an error while the group is read-only, if a request stores values.
func (s *sim) admits(stores bool) error {
	if stores && time.Now().UnixNano() < s.low.Load() {
		return fault.New(fault.ReadOnly, "test", "the group is read-only")
	}
	return nil
}

// Ask implements records.Access.
func (a *simAccess) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	return simCall(ctx, a, simAskTimeout, a.serve(body))
}

// serve returns the function with which a server answers a call.
func (a *simAccess) serve(body []byte) func(context.Context, life) ([]byte, error) {
	return func(ctx context.Context, l life) ([]byte, error) {
		if err := a.s.admits(a.s.service.stores(body)); err != nil {
			return nil, err
		}
		return l.keeper.Serve(ctx, &lenprefix.Reader{Rest: body})
	}
}

// simRead calls f with the machine of a leader, for a linearizable read.
func simRead[T any](ctx context.Context, a *simAccess, f func(*kv.Machine) (T, error)) (T, error) {
	value, _, err := simCall(ctx, a, simWriteTimeout, func(ctx context.Context, l life) (T, error) {
		if err := (simRecordGroup{l.group}).Confirm(ctx); err != nil {
			var none T
			return none, err
		}
		return f(l.group.Machine())
	})
	return value, err
}

// Values implements records.Access.
func (a *simAccess) Values(ctx context.Context, _ uint32, store string, keys []string) ([]kv.Value, error) {
	return simRead(ctx, a, func(m *kv.Machine) ([]kv.Value, error) { return m.GetMany(store, keys, 0) })
}

// List implements records.Access.
func (a *simAccess) List(ctx context.Context, _ uint32, store string, p records.Page) ([]string, bool, error) {
	type listing struct {
		keys []string
		more bool
	}
	all, err := simRead(ctx, a, func(m *kv.Machine) (out listing, err error) {
		found, more, err := m.List(store, p.Prefix, p.After, p.Limit, 0)
		for i := range found {
			out.keys = append(out.keys, found[i].Key)
		}
		out.more = more
		return out, err
	})
	return all.keys, all.more, err
}
