package raftfsm

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// membership holds the identity of this node and of its cluster. It is safe for concurrent use.
type membership struct {
	dir string // data directory
	// temporary means that the identity exists only in this process and is not written to disk. A temporary member
	// also adopts a newer epoch of the cluster.
	temporary bool
	self      datadir.Identity            // identity at the start; Node, Server, Partitions and Engine never change
	stop      chan struct{}               // closed when the node closes
	tag       atomic.Uint64               // of the cluster, for session tokens
	joined    chan struct{}               // closed once the node belongs to a cluster
	retired   atomic.Pointer[fault.Error] // error of every request to a removed server; nil = not removed

	mu       sync.Mutex
	identity datadir.Identity // guarded by mu
}

func newMembership(dir string, id datadir.Identity, temporary bool, stop chan struct{}) *membership {
	m := &membership{dir: dir, temporary: temporary, self: id, identity: id, stop: stop, joined: make(chan struct{})}
	m.tag.Store(id.Tag())
	if id.Cluster != "" {
		close(m.joined)
	}
	if id.Removed {
		m.retired.Store(errRemoved(id.Node, dir))
	}
	return m
}

// current returns the present identity.
func (m *membership) current() datadir.Identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.identity
}

// ownerOf returns the cluster to which the groups of a server belong.
func ownerOf(id *datadir.Identity) raftlog.Owner {
	return raftlog.Owner{Cluster: id.Cluster, Epoch: id.Epoch}
}

// amend calls change to modify the identity of this server, and makes the result durable. A temporary identity is
// changed only in memory. After an error the identity is unchanged.
func (m *membership) amend(change func(*datadir.Identity) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.identity
	if err := change(&id); err != nil {
		return err
	}
	if id == m.identity {
		return nil
	}
	if !m.temporary {
		if err := id.Write(m.dir); err != nil {
			return err
		}
	}
	first := m.identity.Cluster == "" && id.Cluster != ""
	m.identity = id
	m.tag.Store(id.Tag())
	if first {
		close(m.joined)
	}
	return nil
}

// wait waits until the node belongs to a cluster. It returns the tag of the cluster, which session tokens contain.
func (m *membership) wait(ctx context.Context) (uint64, error) {
	if err := m.allowed(); err != nil {
		return 0, err
	}
	select {
	case <-m.joined:
		return m.tag.Load(), nil
	default:
	}
	select {
	case <-m.joined:
		return m.tag.Load(), nil
	case <-m.stop:
		return 0, peercalls.ErrClosing()
	case <-ctx.Done():
		return 0, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.membership",
			Msg: "this node belongs to no cluster yet", Err: ctx.Err(),
			Hint: "see 'quorate status' and 'quorate members' on this node"}
	}
}

// allowed returns nil if this node may serve requests, and otherwise the reason why not.
func (m *membership) allowed() error {
	if e := m.retired.Load(); e != nil {
		return e
	}
	return nil
}

// startsEpoch reports whether this node is a sidecar and the given epoch is newer than its current epoch. The sidecar
// then adopts the given epoch (see Host.Adopt).
func (m *membership) startsEpoch(epoch uint64) bool {
	return m.temporary && epoch > m.current().Epoch
}

// adopt implements Host.Adopt.
func (m *membership) adopt(cluster string, epoch uint64) error {
	return m.amend(func(id *datadir.Identity) error {
		if have := id.Cluster; have != "" && have != cluster {
			return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Adopt", Key: m.dir,
				Msg:  fmt.Sprintf("the data directory %s belongs to cluster %s, not to %s", m.dir, have, cluster),
				Hint: "join the cluster it belongs to, or choose an empty data directory"}
		}
		if id.Cluster == "" || m.temporary && epoch > id.Epoch {
			id.Epoch = epoch
		}
		id.Cluster, id.Promised = cluster, ""
		return nil
	})
}

// promise implements Host.Promise.
func (m *membership) promise(candidate string) error {
	return m.amend(func(id *datadir.Identity) error {
		conflict := func(format string, args ...any) error {
			return &fault.Error{Code: fault.Conflict, Op: "raftfsm.Promise", Msg: fmt.Sprintf(format, args...),
				Hint: "if that server is lost permanently, empty the data directory of " + id.Node}
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

// Adopt makes this node a permanent member of a cluster. A new member gets the given epoch. An existing member keeps
// its epoch, except that a sidecar adopts a newer one. When Adopt returns nil, the membership of a server is durable.
// Adopt returns fault.Invalid if the node belongs to another cluster.
func (h *Host) Adopt(cluster string, epoch uint64) error {
	starts := h.node.startsEpoch(epoch)
	if err := h.node.adopt(cluster, epoch); err != nil {
		return err
	}
	if starts {
		h.router.forgetPositions() // they are in the log of an earlier epoch, which may be lost
	}
	return nil
}

// Supersede records that other servers of the cluster have an epoch newer than that of this server. The record is
// durable when Supersede returns nil. Supersede does nothing if this server already knows that epoch or a later one.
func (h *Host) Supersede(epoch uint64) error {
	if have := h.node.current(); epoch <= max(have.Epoch, have.Superseded) {
		return nil
	}
	return h.node.amend(func(id *datadir.Identity) error {
		id.Superseded = max(id.Superseded, epoch)
		return nil
	})
}

// Promise permanently allows another server, the candidate, to form a cluster with this server. When Promise returns
// nil, the promise is durable. Promise returns fault.Conflict if this server belongs to a cluster, or has given its
// promise to another candidate.
//
// A server never withdraws its promise. Therefore at most one candidate can get the promises of all servers in a set,
// and these servers form at most one cluster.
func (h *Host) Promise(candidate string) error { return h.node.promise(candidate) }

// Form creates a cluster with this server as its only member. The server leads every group when Form returns nil.
// Form returns fault.Conflict if the server already belongs to a cluster. If Form is interrupted, the next Open
// completes it.
func (h *Host) Form(ctx context.Context) error {
	err := h.node.amend(func(id *datadir.Identity) error {
		if id.Cluster != "" {
			return fault.New(fault.Conflict, "raftfsm.Form", id.Node+" belongs to cluster "+id.Cluster+" already")
		}
		id.Cluster, id.Forming = datadir.RandomID(), true
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
	return h.node.amend(func(id *datadir.Identity) error {
		id.Forming, id.Promised = false, ""
		return nil
	})
}
