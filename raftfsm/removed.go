package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Which servers an operator has removed is kept in the replicated data of every group, so
// that no later leader takes one in again. A server id is never used twice, so these marks
// are never deleted.
//
// systemStore has no slash, and every application's store has one: no application can
// read or write it.
const (
	systemStore   = kv.SystemStore // a restore leaves it as it is
	removedPrefix = "removed/"
)

// removedMark is what marks a server.
func removedMark(server string) command.Op {
	return command.Op{Kind: command.OpSet, Store: systemStore, Key: removedPrefix + server, Value: []byte("{}")}
}

// MarkRemoved notes in a group, durably and for good, that an operator removed a server.
// Errors are those of a strong write.
func (h *Host) MarkRemoved(ctx context.Context, gid uint32, server string) error {
	a, err := h.write(ctx, gid, &command.Request{Kind: command.KindWrite, Ops: []command.Op{removedMark(server)}}, group.Committed)
	if err != nil {
		return err
	}
	return outcome(&a.Result)
}

// RemovedServers are the servers marked in a group, as the replica on this node knows.
func (h *Host) RemovedServers(gid uint32) []string {
	if int(gid) >= len(h.groups) {
		return nil
	}
	var out []string
	for after, more := "", true; more; {
		var page []kv.Listed
		var err error
		if page, more, err = h.groups[gid].Machine().List(systemStore, removedPrefix, after, maxPage, 0); err != nil {
			return out // closing, or being replaced: whoever asks asks again
		}
		for _, l := range page {
			after = l.Key
			out = append(out, l.Key[len(removedPrefix):])
		}
	}
	return out
}

// Standing is what this server knows of another in one group.
type Standing struct {
	Member  bool // of the latest configuration
	Settled bool // that configuration is committed
	Removed bool // it is marked as removed
}

// Standing tells how a server stands in a group. A server that is marked, and no member of
// a settled configuration, is out for good.
func (h *Host) Standing(gid uint32, server string) Standing {
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

// Leader is the server that leads a group, as far as this node knows; empty if it does not.
func (h *Host) Leader(gid uint32) string {
	if h.scout != nil {
		return string(h.scout.leader(gid))
	}
	if int(gid) >= len(h.groups) {
		return ""
	}
	return string(h.groups[gid].Leader())
}

// Retire takes notice that the cluster has removed this server for good: from now on, and
// after every restart, it serves nothing and takes no part in its groups. It is durable
// when it returns nil. Idempotent.
func (h *Host) Retire() error {
	if err := h.amend(func(id *Identity) error {
		id.Removed = true
		return nil
	}); err != nil {
		return err
	}
	h.retired.Store(errRemoved(h.self.Node, h.opts.Dir))
	errs := make([]error, len(h.groups))
	var wg sync.WaitGroup
	for i, g := range h.groups {
		wg.Go(func() { errs[i] = g.Retire() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// errRemoved is what a server that the cluster has removed answers to everything.
func errRemoved(node, dir string) *fault.Error {
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Host", Key: dir,
		Msg:  fmt.Sprintf("%s was removed from the cluster by an operator and serves nothing any more", node),
		Hint: "stop it; to let it join anew, empty " + dir + " and start it again"}
}

// Removed is nil, or says that this server was removed from its cluster, and the mend.
func (h *Host) Removed() error { return h.allowed() }

// allowed is nil, or says why this node serves nothing.
func (h *Host) allowed() error {
	if e := h.retired.Load(); e != nil {
		return e
	}
	return nil
}
