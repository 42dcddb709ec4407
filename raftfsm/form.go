package raftfsm

import (
	"context"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// amend changes the identity; it is durable when it returns nil, and unchanged otherwise.
// A few bytes, a few times in a server's life: the lock orders the writes.
func (h *Host) amend(change func(*Identity) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := h.identity
	if err := change(&id); err != nil {
		return err
	}
	if id == h.identity {
		return nil
	}
	if h.scout == nil { // a node without replicas belongs to a cluster only as long as it runs
		if err := id.write(h.opts.Dir); err != nil {
			return err
		}
	}
	first := h.identity.Cluster == "" && id.Cluster != ""
	h.identity = id
	h.tag.Store(id.tag())
	if first {
		close(h.member)
	}
	return nil
}

// belong waits until the node belongs to a cluster, and returns its tag. Before that no
// session can be read, and none be given: it would count as another cluster's elsewhere.
func (h *Host) belong(ctx context.Context) (uint64, error) {
	if err := h.allowed(); err != nil {
		return 0, err
	}
	select {
	case <-h.member:
		return h.tag.Load(), nil
	default:
	}
	select {
	case <-h.member:
		return h.tag.Load(), nil
	case <-h.stop:
		return 0, errClosing()
	case <-ctx.Done():
		return 0, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.belong", Msg: "this node belongs to no cluster yet", Err: ctx.Err(),
			Hint: "see 'quorate status' and 'quorate members' on this node"}
	}
}

// Adopt makes this server, which belonged to no cluster, part of one, for good, at the epoch
// that the cluster is at. It is durable when it returns nil, and invalid for a server of
// another cluster.
func (h *Host) Adopt(cluster string, epoch uint64) error {
	if h.scout != nil && h.Partitions() > 0 && epoch > h.Identity().Epoch {
		for i := range h.own {
			h.own[i].clear() // a place in a log that may be lost
		}
	}
	return h.amend(func(id *Identity) error {
		if have := id.Cluster; have != "" && have != cluster {
			return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Adopt", Key: h.opts.Dir,
				Msg:  fmt.Sprintf("the data directory %s belongs to cluster %s, not to %s", h.opts.Dir, have, cluster),
				Hint: "join the cluster it belongs to, or choose an empty data directory"}
		}
		if id.Cluster == "" || h.scout != nil && epoch > id.Epoch {
			id.Epoch = epoch // a node without replicas follows rescues
		}
		id.Cluster, id.Promised = cluster, ""
		return nil
	})
}

// Promise allows candidate, and nobody else ever, to form a cluster that this server will
// be part of. It is durable when it returns nil, and a conflict if this server belongs to
// a cluster or has promised itself to another.
//
// Invariant: two servers that both hold the promises of the same set of servers are one
// server, so no two clusters are formed of one set.
func (h *Host) Promise(candidate string) error {
	return h.amend(func(id *Identity) error {
		conflict := func(format string, args ...any) error {
			return &fault.Error{Code: fault.Conflict, Op: "raftfsm.Promise", Msg: fmt.Sprintf(format, args...),
				Hint: "if that server is gone for good, empty the data directory of " + id.Node}
		}
		switch {
		case id.Cluster != "":
			return conflict("%s belongs to cluster %s already", id.Node, id.Cluster)
		case id.Promised != "" && id.Promised != candidate:
			return conflict("%s waits for %s to form the cluster", id.Node, id.Promised)
		}
		id.Promised = candidate
		return nil
	})
}

// Form makes a cluster of this one server, which belonged to none; others are added to its
// groups later. An interruption is made good at the next Open. It leads when it returns nil.
func (h *Host) Form(ctx context.Context) error {
	err := h.amend(func(id *Identity) error {
		if id.Cluster != "" {
			return fault.New(fault.Conflict, "raftfsm.Form", id.Node+" belongs to cluster "+id.Cluster+" already")
		}
		id.Cluster, id.Forming = randomID(), true
		return nil
	})
	if err != nil {
		return err
	}
	for _, g := range h.groups {
		if err := g.Form(ctx); err != nil {
			return err
		}
	}
	return h.amend(func(id *Identity) error {
		id.Forming, id.Promised = false, ""
		return nil
	})
}
