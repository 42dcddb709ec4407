package raftfsm

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/session"
)

// retryPause bounds how long a call waits for a leader before it checks again.
const retryPause = 100 * time.Millisecond

// router sends the reads and writes of this node to the groups. It updates session tokens and makes retries safe. It
// works the same on nodes with and without data. It is safe for concurrent use.
type router struct {
	node    *membership
	replica replica
	metrics *Metrics
	retry   retries
	tokens  session.Cache
	hub     feed.Hub
	name    string // begins the name of every origin of this node; different for every incarnation of the process

	making sync.Mutex
	groups atomic.Pointer[[]groupRequests] // created under making, once the number of groups is known
}

// groupRequests holds the state of this node's own requests to one group.
type groupRequests struct {
	origin *origin
	own    ownWrites
	seen   atomic.Uint64 // newest committed index that an answer has shown
	term   atomic.Uint64 // newest term that an answer has shown
}

func newRouter(node *membership, rep replica, m *Metrics, stop chan struct{}) *router {
	return &router{node: node, replica: rep, metrics: m, retry: retries{m, stop}, name: node.self.Server +
		"/" + datadir.RandomID()}
}

// group returns the state of this node's own requests to a group. The caller must have called waitPartitions before, so
// that the number of groups is known.
func (r *router) group(gid uint32) *groupRequests {
	if p := r.groups.Load(); p != nil {
		return &(*p)[gid]
	}
	return &r.makeGroups()[gid]
}

func (r *router) makeGroups() []groupRequests {
	r.making.Lock()
	defer r.making.Unlock()
	if p := r.groups.Load(); p != nil {
		return *p
	}
	made := make([]groupRequests, r.replica.partitions())
	for i := range made {
		made[i].origin = newOrigin(r.name, r.registrar(uint32(i))) //nolint:gosec // few
	}
	if len(made) > 0 {
		r.groups.Store(&made)
	}
	return made
}

// noteWrite records the log position of a write that this node has acknowledged. ops are the operations of the
// write. Later eventual reads of the same application on this node wait for that position.
func (r *router) noteWrite(at session.Seen, ops []command.Op) {
	own := &r.group(at.Group).own
	for i := range ops {
		if p := state.PrefixOf(ops[i].Key); i == 0 || p != state.PrefixOf(ops[i-1].Key) {
			own.note(application{ops[i].Store, p}, at)
		}
	}
}

// noteRestore records the log position of a restore of a group. Later eventual reads of that group on this node wait
// for that position.
func (r *router) noteRestore(at session.Seen) { r.group(at.Group).own.shareAll(&at) }

// forgetPositions forgets the positions of this node's writes and all positions that this node has seen, in every
// group.
func (r *router) forgetPositions() {
	if p := r.groups.Load(); p != nil {
		for i := range *p {
			g := &(*p)[i]
			g.own.clear()
			g.seen.Store(0)
			g.term.Store(0)
		}
	}
}

// retries decides which calls are retried. It is passed by value.
type retries struct {
	metrics *Metrics
	stop    chan struct{} // closed when the node closes
}

// again reports whether the caller should retry a call to a group after the error err. Before it returns true, it waits
// until the leader may have changed. It returns false if a retry cannot help, if ctx has ended, or if the node is
// closing.
func (r retries) again(ctx context.Context, rep replica, gid uint32, err error) bool {
	code := fault.CodeOf(err)
	switch code {
	case fault.NotLeader, fault.Indeterminate, fault.Unavailable:
	default:
		return false
	}
	if ctx.Err() != nil || r.closing() {
		return false
	}
	r.metrics.retries.WithLabelValues(string(code)).Inc()
	rep.waitChange(ctx, gid)
	return ctx.Err() == nil && !r.closing()
}

// closing reports whether the node is closing.
func (r retries) closing() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}
