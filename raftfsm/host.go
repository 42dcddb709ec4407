// Package raftfsm is the replicated store of Quorate: the Raft groups of one node and the
// state store, type state.raft, that stands on them.
//
// It owns a data directory: its lock, its identity, and one folder for each group
// (partition). It turns stored keys into groups, chooses the replica that serves a call,
// makes retries harmless, and keeps the promises of docs/consistency.md. It must never
// know HTTP, applications, components or gossip.
//
// Goroutines of an open Host, all ended by Close: those of its groups, and the watch over
// the disk's free space.
package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

// Options say how to open a Host. Dir, Transport, Logger, Registerer and Fatal are required.
type Options struct {
	Dir        string // data directory; made if absent
	NodeID     string // empty = what the directory says, or DefaultID
	DefaultID  string // node id of a new directory where NodeID is empty; empty = a random one
	Partitions uint32 // 0 = what the directory says, or, for a server that belongs to no cluster yet, what Count says, or 1
	// Count asks the cluster that the node with that id is to join for its number of
	// partitions; 0 = it cannot be told. nil = nobody is asked.
	Count     func(ctx context.Context, node string) uint32
	Engine    group.LogEngine // empty = what the directory says, or boltdb
	Bootstrap bool            // form a cluster of this one node if, and only if, the directory is new

	Transport func(id uint32, server raft.ServerID) raft.Transport // one for each group
	Peers     Peers                                                // the other servers; nil = there are none

	// Newest tells the highest version of log entries that another server understands; false
	// if that is not known now. nil = all servers run this build.
	Newest func(server string) (version uint8, known bool)

	Sidecar bool            // hold no replicas and answer through servers; needs Peers and Servers
	Servers func() []string // with Sidecar: ids of the servers that are alive, as far as is known

	CacheBytes int64  // block cache of all groups together; default 64 MiB
	MemTable   uint64 // bytes of one memtable; default 16 MiB, less with many partitions
	MinFree    uint64 // free bytes of the disk below which values are refused; default 256 MiB

	Timing group.Timing
	Bounds group.Bounds

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Fatal      func(error)                      // see group.Options.Fatal
	Now        func() time.Time                 // wall clock; nil = time.Now
	FreeBytes  func(dir string) (uint64, error) // nil = ask the operating system
	Step       func(step string)                // crash points, for tests
}

const (
	defaultCache    = 64 << 20
	defaultMemTable = 16 << 20
	defaultMinFree  = 256 << 20
	spacePeriod     = time.Second
)

func (o Options) withDefaults() Options {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if o.MinFree == 0 {
		o.MinFree = defaultMinFree
	}
	if o.FreeBytes == nil {
		o.FreeBytes = freeBytes
	}
	return o
}

// Host holds every Raft group of this node. Safe for concurrent use.
type Host struct {
	opts     Options
	mu       sync.Mutex
	identity Identity      // under mu once Open has identified the directory
	self     Identity      // as it was then: what never changes (Node, Server, Partitions, Engine) is read without a lock
	tag      atomic.Uint64 // of the cluster, for session tokens
	tokens   tokens
	member   chan struct{} // closed once the node belongs to a cluster
	boot     string
	lock     *dirLock
	cache    *pebble.Cache
	space    *space
	groups   []*group.Group
	origins  []*origin
	own      []ownWrites // by group
	vouched  []vouched   // by group
	forward  *forwarder  // nil without Peers
	awaited  *awaited    // calls to leaders under way
	scout    *scout      // of a host without replicas; nil on a server
	retired  atomic.Pointer[fault.Error]
	metrics  *Metrics

	restoring sync.Mutex // held by the restore under way

	stop   chan struct{}
	wg     sync.WaitGroup
	closed sync.Once
	err    error
}

// Open locks the directory, reads or makes its identity, and opens its groups. ctx bounds
// opening. A node that forms a cluster of one leads every group when Open returns.
func Open(ctx context.Context, o Options) (*Host, error) {
	o = o.withDefaults()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, dirError(err, o.Dir)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	h := &Host{opts: o, lock: lock, boot: randomID(), stop: make(chan struct{}), member: make(chan struct{}), awaited: newAwaited(), metrics: newMetrics(o.Registerer)}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open(ctx context.Context) error {
	if h.opts.Sidecar {
		return h.openSidecar()
	}
	if err := h.identify(ctx); err != nil {
		return err
	}
	h.self = h.identity
	if h.self.Removed {
		h.retired.Store(errRemoved(h.self.Node, h.opts.Dir))
		return nil // its groups stay closed: they belong to a cluster that goes on without them
	}
	h.tag.Store(h.self.tag())
	if h.self.Cluster != "" {
		close(h.member)
	}
	h.cache = pebble.NewCache(h.opts.CacheBytes)
	h.space = &space{dir: h.opts.Dir, min: h.opts.MinFree, free: h.opts.FreeBytes, logger: h.opts.Logger}
	h.space.look()
	if err := h.space.enoughToStart(); err != nil {
		return err
	}
	if err := h.openGroups(ctx); err != nil {
		return err
	}
	if err := h.made(); err != nil {
		return err
	}
	h.wg.Go(func() { h.space.watch(spacePeriod, h.stop) })
	h.opts.Registerer.MustRegister(&collector{host: h})
	return nil
}

// identify reads the directory's identity, or makes one for an empty directory. It is
// written before the groups, whose own making survives an interruption.
func (h *Host) identify(ctx context.Context) error {
	id, err := readIdentity(h.opts.Dir)
	if err != nil {
		return err
	}
	if id != nil && id.Role != RoleSidecar {
		h.identity = *id
		if err := id.agree(h.opts); err != nil {
			return err
		}
		return h.recount(ctx)
	}
	if id != nil && h.opts.NodeID == "" {
		h.opts.DefaultID = id.Node // a sidecar until now: it held no data, so a server is made in its place
	}
	h.identity = *newIdentity(h.opts)
	if h.opts.Bootstrap {
		h.identity.Cluster, h.identity.Forming = randomID(), true
	} else if n := h.count(ctx); n != 0 {
		h.identity.Partitions = n
	}
	return h.identity.write(h.opts.Dir)
}

// made notes that every group exists. From now on a missing one is a loss and refused:
// an empty group in its place would forget what was acknowledged, and vote twice.
func (h *Host) made() error {
	if h.self.Made && !h.self.Forming {
		return nil
	}
	return h.amend(func(id *Identity) error {
		id.Made, id.Forming = true, false
		return nil
	})
}

// openGroups opens all groups at a time: most of it is waiting for the disk.
func (h *Host) openGroups(ctx context.Context) error {
	n := int(h.self.Partitions)
	if err := checkFormats(h.opts.Dir, &h.self, h.opts.Logger); err != nil {
		return err
	}
	h.groups = make([]*group.Group, n)
	h.makeOrigins(n)
	if h.opts.Peers != nil {
		h.forward = newForwarder(h)
	}
	shared := group.NewMetrics(h.opts.Registerer)
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i := range n {
		eg.Go(func() error {
			g, err := group.Open(ctx, h.groupOptions(uint32(i), shared))
			if err != nil {
				return fault.Wrap(err, "raftfsm.Open", "group "+strconv.Itoa(i))
			}
			h.groups[i] = g
			return nil
		})
	}
	return eg.Wait()
}

func (h *Host) groupOptions(id uint32, m *group.Metrics) group.Options {
	o := h.opts
	server := raft.ServerID(h.self.Server)
	return group.Options{
		ID: id, Dir: filepath.Join(o.Dir, "groups", strconv.FormatUint(uint64(id), 10)), ServerID: server,
		Transport: o.Transport(id, server), Confirmer: confirmer{o.Peers, id}, Replicas: replicasOf(o.Peers, id), Engine: h.self.Engine,
		Bootstrap: h.self.Forming, MustExist: h.self.Made, Cache: h.cache, MemTable: memTable(o.MemTable, h.self.Partitions),
		Timing: o.Timing, Bounds: o.Bounds, Logger: o.Logger, Metrics: m, Fatal: o.Fatal,
		Newest: h.newest(), Raise: h.raiseFormat, Level: uint8(h.self.Format), //nolint:gosec // at most command.Version
		Now: o.Now, Step: o.Step, NewLeader: func(leader raft.ServerID) { h.awaited.moved(id, leader) },
	}
}

// newest is Options.Newest in the form of a group.
func (h *Host) newest() func(raft.ServerID) (uint8, bool) {
	if h.opts.Newest == nil {
		return nil
	}
	return func(id raft.ServerID) (uint8, bool) { return h.opts.Newest(string(id)) }
}

// raiseFormat notes that the directory is about to hold log entries of a version.
func (h *Host) raiseFormat(version uint8) error {
	return h.amend(func(id *Identity) error {
		id.Format = max(id.Format, uint32(version))
		return nil
	})
}

// checkFormats refuses, before anything in the directory is changed, what a newer version
// has written in any of its groups.
func checkFormats(dir string, id *Identity, logger *slog.Logger) error {
	for gid := range id.Partitions {
		err := group.CheckFormats(group.Options{
			ID: gid, Dir: groupDir(dir, gid), Engine: id.Engine, Logger: logger,
			Fatal: func(err error) { logger.Error("the disk failed", "error", err) },
		})
		if err != nil {
			return fault.Wrap(err, "raftfsm.Open", "group "+utoa(gid))
		}
	}
	return nil
}

// memTable shares what one group would use among many: Pebble takes memtables out of the
// block cache.
func memTable(asked uint64, partitions uint32) uint64 {
	if asked != 0 {
		return asked
	}
	return max(defaultMemTable/uint64(partitions), 1<<20)
}

// Identity is what the data directory says about itself.
func (h *Host) Identity() Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.identity
}

// Dir is the data directory.
func (h *Host) Dir() string { return h.opts.Dir }

// Groups are the node's groups; the index is the partition. A host without replicas has
// none, nor has a server that was removed. The slice must not be changed.
func (h *Host) Groups() []*group.Group { return h.groups }

// WritesAllowed is nil, or says why values cannot be stored now.
func (h *Host) WritesAllowed() error {
	if h.space == nil {
		return nil // it stores nothing
	}
	return h.space.allowed()
}

// Ready says whether reads and writes of a group can be served now; nil if so.
func (h *Host) Ready(id uint32) error {
	if err := h.allowed(); err != nil {
		return err
	}
	if h.scout != nil {
		return h.readySidecar(id)
	}
	g := h.groups[id]
	if err := g.Trusted(); err != nil {
		return err
	}
	if _, away := h.elsewhere(id); g.Leading() || away && g.CaughtUp() {
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Ready", Msg: fmt.Sprintf("group %d has no leader", id),
		Hint: "it chooses one as soon as a majority of its voters can talk to each other"}
}

// Close closes the groups, ends every goroutine and gives the directory back. Idempotent.
func (h *Host) Close() error {
	h.closed.Do(func() {
		close(h.stop)
		if h.forward != nil {
			h.forward.close()
		}
		h.wg.Wait()
		errs := make([]error, len(h.groups))
		var closing sync.WaitGroup
		for i, g := range h.groups {
			if g != nil {
				closing.Go(func() { errs[i] = g.Close() })
			}
		}
		closing.Wait()
		if h.cache != nil {
			h.cache.Unref()
		}
		h.err = errors.Join(append(errs, h.lock.release())...)
	})
	return h.err
}
