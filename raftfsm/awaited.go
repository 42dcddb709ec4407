package raftfsm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// awaited are the calls under way to servers that were taken for leaders. One that hangs,
// with its disk or as a whole, answers nobody and refuses nobody.
//
// Invariant: a call to a server taken for the leader of a group is waited for only until
// this node knows another leader of that group, and is then tried again there, as long as
// its caller has time. That is safe: a read index is a question. A proposal may still be
// applied at the first place, so its outcome counts as unknown; but every proposal that is
// repeated has the id of a registered origin, under which it is applied once, or, like a
// registration, harms nobody when it is applied twice.
type awaited struct {
	mu   sync.Mutex
	open map[*awaitedCall]struct{} // guarded by mu
}

type awaitedCall struct {
	group uint32
	to    raft.ServerID
	since time.Time
	end   context.CancelCauseFunc
}

// errMoved is why a call ended of which another server is the leader's now.
var errMoved = errors.New("another server leads the group now")

func newAwaited() *awaited { return &awaited{open: map[*awaitedCall]struct{}{}} }

func (a *awaited) add(c *awaitedCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[c] = struct{}{}
}

func (a *awaited) remove(c *awaitedCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c)
}

// moved ends the calls for a group that went to another server than leader. An empty
// leader, of a group that is just electing one, ends nothing.
func (a *awaited) moved(gid uint32, leader raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.open {
		if c.group == gid {
			c.moved(leader)
		}
	}
}

func (c *awaitedCall) moved(leader raft.ServerID) {
	if leader != "" && leader != c.to {
		c.end(errMoved)
	}
}

// waiting are the groups of calls that have been under way for at least so long.
func (a *awaited) waiting(least time.Duration) map[uint32]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	groups := map[uint32]bool{}
	for c := range a.open {
		if time.Since(c.since) >= least {
			groups[c.group] = true
		}
	}
	return groups
}

// await makes the context of a call to a server taken for the leader of a group: it ends
// when another leader is known. done must be called when the call has ended.
func (h *Host) await(ctx context.Context, gid uint32, to raft.ServerID) (_ context.Context, done func()) {
	ctx, end := context.WithCancelCause(ctx)
	c := &awaitedCall{group: gid, to: to, since: time.Now(), end: end}
	h.awaited.add(c)
	c.moved(h.leader(gid)) // it may have changed before the call was added
	return ctx, func() {
		h.awaited.remove(c)
		end(nil)
	}
}

// leader is the server that this node takes for the leader of a group; empty if it knows none.
func (h *Host) leader(gid uint32) raft.ServerID {
	if h.scout != nil {
		return h.scout.leader(gid)
	}
	return h.groups[gid].Leader()
}

// endedBy tells of a call that was given up because the leader changed: what was surely not
// done is, like anything else that another server can do, not the fault of time. Other
// errors stay what they are.
func endedBy(ctx context.Context, op string, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errMoved) {
		return err
	}
	switch fault.CodeOf(err) {
	case fault.Timeout:
		return &fault.Error{Code: fault.NotLeader, Op: op, Msg: "the call was given up before it was sent", Err: errMoved}
	case fault.Indeterminate:
		return &fault.Error{Code: fault.Indeterminate, Op: op, Msg: "another server was elected before the leader answered; the write may have been applied", Err: err}
	}
	return err
}
