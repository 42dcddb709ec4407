// Package raftfsm is the replicated store of Quorate: the Raft groups of one node, and the state store of type
// state.raft that uses them.
//
// It owns a data directory, which has one folder for each group (see package datadir). It maps keys to groups,
// chooses the replica that serves a call, makes retries safe, and implements the guarantees of docs/consistency.md.
// It does not use HTTP, applications, components or gossip.
//
// The interface replica has two implementations: server, for a node with data, and sidecar, for a node without data. A
// Host has one of the two, and its router sends requests to that replica.
//
// Host.Close ends every goroutine of a Host: the goroutines of its groups, and the goroutine that watches the free
// disk space. On a sidecar, it ends the goroutine that polls servers.
package raftfsm

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Options configure a Host. Dir, Transport, Logger, Registerer and Fatal are required.
type Options struct {
	Dir       string // data directory; created if absent
	NodeID    string // empty = from the directory, or DefaultID
	DefaultID string // node id for a new directory if NodeID is empty; empty = a random one
	// Partitions is the number of groups. 0 = the number in the directory. Before this server belongs to a cluster,
	// 0 = the number of the cluster to join (see Cluster.CountPartitions), or 1 if that is unknown.
	Partitions uint32
	Engine     raftlog.Engine // empty = from the directory, or wal
	Bootstrap  bool           // form a cluster with only this node if the directory is new

	Transport func(id uint32, server raft.ServerID) raft.Transport // one per group
	Peers     peercalls.Peers                                      // the other servers; nil = there are none

	// Cluster describes the other servers. nil = NoCluster.
	Cluster Cluster
	Sidecar bool // hold no replicas and serve requests through servers; needs Peers

	CacheBytes int64  // block cache shared by all groups; default 64 MiB
	MemTable   uint64 // bytes of one memtable; default 16 MiB, less with many partitions
	MinFree    uint64 // free bytes of the disk below which values are refused; default 256 MiB

	Timing   group.Timing
	Bounds   group.Bounds
	MaxLocks int // locks that a group may have; default locks.MaxLocks

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Fatal      func(error)                      // see group.Options.Fatal
	Now        func() time.Time                 // wall clock; nil = time.Now
	FreeBytes  func(dir string) (uint64, error) // free bytes of the disk of dir; nil = from the operating system
	Step       func(step string)                // called at crash points, for tests
}

// Cluster is what a node knows of the other servers of its cluster. Its methods may be called from any goroutine. Only
// CountPartitions may block.
type Cluster interface {
	// LiveServers returns the ids of the servers that are known to be alive. Only a node without data calls this
	// method.
	LiveServers() []string
	// CountPartitions returns the number of partitions of the cluster that the node with this id is about to join;
	// 0 = unknown.
	CountPartitions(ctx context.Context, node string) uint32
	// NewestFormat returns the highest version of log entries that another server can read. The result known is false
	// if the version is unknown at present.
	NewestFormat(server string) (version uint8, known bool)
	// DiskOf returns the state of another server's disk.
	DiskOf(server string) DiskState
	// NoLeader explains why a group has no leader, and what to do; empty = unknown.
	NoLeader(group uint32) (why, hint string)
}

// NoCluster implements Cluster for a node that knows no other server. Embed it to implement only some methods.
type NoCluster struct{}

// LiveServers returns no server.
func (NoCluster) LiveServers() []string { return nil }

// CountPartitions returns 0.
func (NoCluster) CountPartitions(context.Context, string) uint32 { return 0 }

// NewestFormat returns the version of this build, and true.
func (NoCluster) NewestFormat(string) (version uint8, known bool) { return command.Version, true }

// DiskOf returns DiskUnknown.
func (NoCluster) DiskOf(string) DiskState { return DiskUnknown }

// NoLeader returns no reason and no hint.
func (NoCluster) NoLeader(uint32) (why, hint string) { return "", "" }

const (
	defaultCache    = 64 << 20
	defaultMemTable = 16 << 20
	defaultMinFree  = 256 << 20
	spacePeriod     = 500 * time.Millisecond
)

func (o Options) withDefaults() Options {
	if o.Cluster == nil {
		o.Cluster = NoCluster{}
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if o.MinFree == 0 {
		o.MinFree = defaultMinFree
	}
	return o
}

// directory returns the options that concern the data directory.
func (o Options) directory() datadir.Settings {
	return datadir.Settings{Dir: o.Dir, NodeID: o.NodeID, DefaultID: o.DefaultID, Partitions: o.Partitions,
		Cluster: o.Cluster, Engine: o.Engine, Bootstrap: o.Bootstrap, Logger: o.Logger}
}

// Host gives a node access to the Raft groups of its cluster. On a server, it also runs the replicas of this server.
// It is safe for concurrent use.
type Host struct {
	opts    Options
	lock    *datadir.Lock
	node    *membership
	replica replica
	router  *router
	groups  []*group.Group // of this node; empty on a node without data
	metrics *Metrics

	restoring sync.Mutex // held by the running restore

	stop   chan struct{}
	closed sync.Once
	err    error
}

// Open locks the data directory, reads or creates the identity of the node, and opens its groups. ctx limits only
// how long Open takes. A node that forms a cluster alone leads every group when Open returns.
func Open(ctx context.Context, o Options) (*Host, error) {
	o = o.withDefaults()
	if err := datadir.Create(o.Dir); err != nil {
		return nil, err
	}
	open := openServer
	if o.Sidecar {
		open = openSidecar
	} else if err := datadir.CheckPrivate(o.Dir, o.Logger); err != nil {
		return nil, err
	}
	lock, err := datadir.LockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	h := &Host{opts: o, lock: lock, metrics: newMetrics(o.Registerer), stop: make(chan struct{})}
	if err := open(ctx, h); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.router = newRouter(h.node, h.replica, h.metrics, h.stop)
	return h, nil
}

// Identity returns the identity stored in the data directory.
func (h *Host) Identity() datadir.Identity { return h.node.current() }

// Groups returns the groups of this node, indexed by partition. The slice is empty on a node without data, and on a
// server that was removed from its cluster. The caller must not change the slice.
func (h *Host) Groups() []*group.Group { return h.groups }

// Partitions returns the number of groups of the cluster. A node without data returns 0 until it has reached a
// server.
func (h *Host) Partitions() uint32 { return h.replica.partitions() }

// Leader returns the leader of a group as far as this node knows; empty if it knows none.
func (h *Host) Leader(gid uint32) string { return string(h.replica.Leader(gid)) }

// Route returns how a node without replicas reaches a group. On a server, the result is the zero Route.
func (h *Host) Route(gid uint32) peercalls.Route { return h.replica.route(gid) }

// WritesAllowed returns nil if values can be stored in the group gid. Otherwise it returns an error that names the
// voters with too little free disk space.
func (h *Host) WritesAllowed(gid uint32) error { return h.replica.writesAllowed(gid) }

// DiskLow returns an error if the disk of this server is nearly full, and nil otherwise. A server with a nearly full
// disk should not lead.
func (h *Host) DiskLow() error {
	if s, ok := h.replica.(*server); ok && s.space != nil {
		if e := s.space.Low(); e != nil {
			return e
		}
	}
	return nil
}

// DiskFree returns the free bytes on the disk of the data directory, and the reserve in bytes. The disk counts as
// nearly full if less than the reserve is free. known is false on a node without data, and until the disk has been
// measured.
func (h *Host) DiskFree() (free, reserve uint64, known bool) {
	s, ok := h.replica.(*server)
	if !ok || s.space == nil {
		return 0, 0, false
	}
	return s.space.Measured()
}

// Ready returns nil if the group with the given id can serve reads and writes now, and otherwise an error with the
// reason.
func (h *Host) Ready(id uint32) error {
	if err := h.node.allowed(); err != nil {
		return err
	}
	return h.replica.ready(id)
}

// Serve answers a call from another node. It never forwards the call. It returns fault.NotLeader if only the leader can
// answer the call and this server does not lead. It returns fault.Unavailable if the call was cancelled before it
// began. After either error, the caller may send the call to another server.
func (h *Host) Serve(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if err := h.node.allowed(); err != nil {
		return nil, err
	}
	answer, err := h.replica.serve(ctx, method, payload)
	return answer, cancelled(ctx, err)
}

// cancelled converts the error of a served call into the error that the calling node gets. A call may be cancelled
// before it begins, for example because this node stops. The error is then fault.Unavailable rather than fault.Timeout,
// so that the caller tries another server.
func cancelled(ctx context.Context, err error) error {
	if !fault.Is(err, fault.Timeout) || !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Serve", Msg: "the call was cancelled before it began, " +
		"because this node stops or the caller has given up", Err: err}
}

// Close closes the groups, ends every goroutine and unlocks the directory. It is idempotent.
func (h *Host) Close() error {
	h.closed.Do(func() {
		close(h.stop)
		if h.router != nil {
			h.router.hub.Close()
		}
		if h.replica != nil {
			h.err = h.replica.close()
		}
		h.err = errors.Join(h.err, h.lock.Release())
	})
	return h.err
}
