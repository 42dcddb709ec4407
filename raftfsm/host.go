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
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

// Options say how to open a Host. Dir, Transport, Logger, Registerer and Fatal are required.
type Options struct {
	Dir        string          // data directory; made if absent
	NodeID     string          // empty = what the directory says, or a new one
	Partitions uint32          // 0 = what the directory says, or 1
	Engine     group.LogEngine // empty = what the directory says, or boltdb
	Bootstrap  bool            // form a cluster of this one node if, and only if, the directory is new

	Transport func(id uint32, server raft.ServerID) raft.Transport // one for each group
	Peers     Peers                                                // the other servers; nil = there are none

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
	identity Identity // Cluster is under mu, the rest does not change
	mu       sync.Mutex
	tag      atomic.Uint64 // of the cluster, for session tokens
	boot     string
	lock     *dirLock
	cache    *pebble.Cache
	space    *space
	groups   []*group.Group
	origins  []*origin
	own      []atomic.Pointer[seen] // newest write acknowledged here that the machine may not reflect yet, by group
	metrics  *Metrics

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
	h := &Host{opts: o, lock: lock, boot: randomID(), stop: make(chan struct{}), metrics: newMetrics(o.Registerer)}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open(ctx context.Context) error {
	if err := h.identify(); err != nil {
		return err
	}
	h.tag.Store(clusterTag(h.identity.Cluster))
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
func (h *Host) identify() error {
	id, err := readIdentity(h.opts.Dir)
	if err != nil {
		return err
	}
	if id != nil {
		h.identity = *id
		return id.agree(h.opts)
	}
	h.identity = *newIdentity(h.opts)
	if h.opts.Bootstrap {
		h.identity.Cluster, h.identity.Forming = randomID(), true
	}
	return h.identity.write(h.opts.Dir)
}

// made notes that every group exists. From now on a missing one is a loss and refused:
// an empty group in its place would forget what was acknowledged, and vote twice.
func (h *Host) made() error {
	if h.identity.Made && !h.identity.Forming {
		return nil
	}
	return h.amend(func(id *Identity) error {
		id.Made, id.Forming = true, false
		return nil
	})
}

// openGroups opens all groups at a time: most of it is waiting for the disk.
func (h *Host) openGroups(ctx context.Context) error {
	n := int(h.identity.Partitions)
	h.groups, h.origins, h.own = make([]*group.Group, n), make([]*origin, n), make([]atomic.Pointer[seen], n)
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
	if err := eg.Wait(); err != nil {
		return err
	}
	for i := range h.groups {
		h.origins[i] = newOrigin(h.identity.Server+"/"+h.boot, func(ctx context.Context, attempt func() *command.Request) (group.Answer, error) {
			return h.register(ctx, uint32(i), attempt)
		})
	}
	return nil
}

func (h *Host) groupOptions(id uint32, m *group.Metrics) group.Options {
	o := h.opts
	server := raft.ServerID(h.identity.Server)
	return group.Options{
		ID: id, Dir: filepath.Join(o.Dir, "groups", strconv.FormatUint(uint64(id), 10)), ServerID: server,
		Transport: o.Transport(id, server), Confirmer: confirmer{o.Peers, id}, Engine: h.identity.Engine,
		Bootstrap: h.identity.Forming, MustExist: h.identity.Made, Cache: h.cache, MemTable: memTable(o.MemTable, h.identity.Partitions),
		Timing: o.Timing, Bounds: o.Bounds, Logger: o.Logger, Metrics: m, Fatal: o.Fatal,
		Now: o.Now, Step: o.Step,
	}
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

// Groups are the node's groups; the index is the partition. The slice must not be changed.
func (h *Host) Groups() []*group.Group { return h.groups }

// WritesAllowed is nil, or says why values cannot be stored now.
func (h *Host) WritesAllowed() error { return h.space.allowed() }

// note remembers a write acknowledged here: eventual reads at this node come after it.
func (h *Host) note(at seen) {
	own := &h.own[at.group]
	for {
		have := own.Load()
		if have != nil && !have.before(at) {
			return
		}
		if own.CompareAndSwap(have, &at) {
			return
		}
	}
}

// Ready says whether reads and writes of a group can be served now; nil if so.
func (h *Host) Ready(id uint32) error {
	g := h.groups[id]
	if g.Leading() || (h.elsewhere(g) != "" && g.CaughtUp()) {
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Ready", Msg: fmt.Sprintf("group %d has no leader", id),
		Hint: "it chooses one as soon as a majority of its voters can talk to each other"}
}

// Close closes the groups, ends every goroutine and gives the directory back. Idempotent.
func (h *Host) Close() error {
	h.closed.Do(func() {
		close(h.stop)
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
