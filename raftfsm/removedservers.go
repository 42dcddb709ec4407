package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Tombstones record which servers an operator has removed, so that no later leader adds them again. Each group has
// tombstones in its replicated data. They are never deleted, because a server id is never reused.
//
// No application can access systemStore, because its name has no slash. The store names of applications always have
// one.
const (
	systemStore   = kv.SystemStore // a restore does not change it
	removedPrefix = "removed/"
	removalsKey   = "removals" // its revision changes with every tombstone
)

// tombstone returns the write that records a server as removed.
func tombstone(server string) command.Op {
	return command.Op{Kind: command.OpSet, Store: systemStore, Key: removedPrefix + server, Value: []byte("{}")}
}

// MarkRemoved permanently records in the group gid that an operator has removed a server. Call Removals before the
// decision to remove the server, and pass its result as seen. If MarkRemoved has recorded another server since then, it
// returns fault.Conflict and changes nothing. It also returns the errors of a strong write.
//
// For example, if the group can lose only one more server and two operators each remove one, the second removal fails.
func (h *Host) MarkRemoved(ctx context.Context, gid uint32, server string, seen uint64) error {
	next := command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: systemStore, Key: removalsKey,
		Value: []byte("{}")}
	if seen > 0 {
		next.Cond, next.Revision = command.CondRevision, seen
	}
	a, err := h.router.write(ctx, gid, &command.Request{Kind: command.KindWrite,
		Ops: []command.Op{next, tombstone(server)}}, group.Committed)
	if err != nil {
		return err
	}
	return outcome(&a.Result, nil)
}

// Removals returns a revision that changes whenever MarkRemoved records a server. The revision is 0 if no server is
// recorded. Removals reads the replica of this node, which may lag behind the leader. A later call of RemovedServers
// returns at least the servers that were recorded up to this revision. Removals returns fault.Invalid if this node has
// no replica of the group.
func (h *Host) Removals(gid uint32) (uint64, error) {
	if int(gid) >= len(h.groups) {
		return 0, errNoData("raftfsm.Removals")
	}
	v, err := h.groups[gid].Machine().Get(systemStore, removalsKey, 0)
	if err != nil || !v.Found {
		return 0, err
	}
	return v.Revision, nil
}

// RemovedServers returns the servers that MarkRemoved has recorded in the group gid. It reads the replica of this node,
// which may lag behind the leader. The list is incomplete if the replica is closed or is being replaced.
func (h *Host) RemovedServers(gid uint32) []string {
	if int(gid) >= len(h.groups) {
		return nil
	}
	var out []string
	for after, more := "", true; more; {
		var page []kv.Listed
		var err error
		if page, more, err = h.groups[gid].Machine().List(systemStore, removedPrefix, after, maxPage, 0); err != nil {
			return out // closed, or being replaced: the caller retries
		}
		for _, l := range page {
			after = l.Key
			out = append(out, l.Key[len(removedPrefix):])
		}
	}
	return out
}

// Standing is what this server knows about another server in one group.
type Standing struct {
	Member  bool // the other server is in the newest configuration
	Settled bool // that configuration is committed
	Removed bool // MarkRemoved has marked the other server
}

// Standing returns what this server knows about another server's membership in a group. The other server has left
// the group permanently if Removed and Settled are true and Member is false. If this node has no replica of the group,
// the result is the zero Standing.
func (h *Host) Standing(gid uint32, server string) Standing {
	if int(gid) >= len(h.groups) {
		return Standing{}
	}
	g := h.groups[gid]
	servers, index := g.Servers()
	s := Standing{Settled: index <= g.Committed()}
	for _, m := range servers {
		s.Member = s.Member || string(m.ID) == server
	}
	for _, r := range h.RemovedServers(gid) {
		s.Removed = s.Removed || r == server
	}
	return s
}

// HasLeft reports whether another server has permanently left every group. It reads the replicas of this node. It
// returns false if one of them has not seen the removal yet, or if this node has no groups.
func (h *Host) HasLeft(server string) bool {
	for i := range h.groups {
		if s := h.Standing(uint32(i), server); !s.Removed || !s.Settled || s.Member { //nolint:gosec // few groups
			return false
		}
	}
	return len(h.groups) > 0
}

// Retire records that the cluster has permanently removed this server. From then on, also after a restart, the
// server answers no requests and does not take part in its groups. The record is durable when Retire returns nil.
// Retire is idempotent.
func (h *Host) Retire() error {
	if err := h.node.amend(func(id *datadir.Identity) error {
		id.Removed = true
		return nil
	}); err != nil {
		return err
	}
	h.node.retired.Store(errRemoved(h.node.self.Node, h.opts.Dir))
	errs := make([]error, len(h.groups))
	var wg sync.WaitGroup
	for i, g := range h.groups {
		wg.Go(func() { errs[i] = g.Retire() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// errRemoved is the answer of a removed server to every call.
func errRemoved(node, dir string) *fault.Error {
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Host", Key: dir,
		Msg:  fmt.Sprintf("%s was removed from the cluster by an operator and serves no requests", node),
		Hint: "stop it; to let it join again, empty " + dir + " and start it again"}
}

// Removed returns an error with a hint for the operator if this server was removed from its cluster. Otherwise it
// returns nil.
func (h *Host) Removed() error { return h.node.allowed() }
