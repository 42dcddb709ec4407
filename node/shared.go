package node

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/neighbour"
	"github.com/quorate/quorate/internal/trust"
)

// Shared is a node of a user who may run several on this host, on one data directory and
// without any configuration. Whoever comes first holds the directory and is a server; the
// others attach to it as sidecars over loopback. When the holder ends, however it ends, one
// of them takes the directory over: it opens a server beside its sidecar, in the same
// process, so that what is under way there goes on.
//
// The invariant: only the process that has the neighbour.Hold of the directory opens it.
// Safe for concurrent use.
type Shared struct {
	config Config // as it was asked for
	deps   Deps
	notes  string // directory of the notes of live nodes
	front  *Node  // serves the applications
	lent   string // data directory of a sidecar, removed in the end; empty = front is the server

	cancel context.CancelFunc // ends the wait for the directory
	tasks  sync.WaitGroup
	failed chan error // one slot: the directory could not be taken over

	mu    sync.Mutex
	hold  *neighbour.Hold // nil = another process has it
	back  *Node           // the server that was taken over; nil = none
	left  []*neighbour.Presence
	over  bool
	ended error
}

const (
	holdPause = 50 * time.Millisecond // between looks at the hold of another process
	// tokenSuffix makes the name of the token that secures traffic between the nodes of a
	// shared directory.
	tokenSuffix = ".token"
	lentDir     = "at-"       // begins the name of a sidecar's directory among the notes
	lentSweep   = time.Minute // how old one is at least that is removed as a remain
)

// OpenShared builds a node on the directory that c.Data.Shared says is shared. Otherwise it
// is as Open.
func OpenShared(ctx context.Context, c Config, d Deps) (*Shared, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(c.Data.Dir))
	s := &Shared{config: c, deps: d, notes: filepath.Join(c.Data.RuntimeDir, hex.EncodeToString(sum[:8])), failed: make(chan error, 1)}
	if err := neighbour.Private(c.Data.RuntimeDir); err != nil {
		return nil, err
	}
	if err := neighbour.Private(s.notes); err != nil {
		return nil, err
	}
	s.sweep()
	hold, ok, err := neighbour.TryHold(c.Data.Dir)
	if err != nil {
		return nil, err
	}
	s.hold = hold
	if err := s.secure(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	own := s.config
	if !ok {
		if own, err = s.attached(own); err != nil {
			return nil, err
		}
	}
	if s.front, err = open(ctx, own, d, place{notes: s.notes}); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if err := s.announce(s.front); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	waiting, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if !ok {
		d.Logger.Info("attached to the node that holds the data directory", "data_dir", c.Data.Dir)
		s.tasks.Go(func() { s.await(waiting) })
	}
	return s, nil
}

// secure has nodes that were told nothing else use the token that lies beside the directory.
func (s *Shared) secure() error {
	if s.config.Security.secured() || s.config.Security.Insecure {
		return nil
	}
	dir := s.config.Data.Dir
	path, err := neighbour.Secret(filepath.Dir(dir), filepath.Base(dir)+tokenSuffix, func() string { return trust.NewToken().Reveal() })
	s.config.Security.ClusterTokenFile = path
	return err
}

// attached is the configuration of a sidecar.
func (s *Shared) attached(c Config) (Config, error) {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	s.lent = filepath.Join(s.notes, lentDir+hex.EncodeToString(b[:]))
	if err := os.Mkdir(s.lent, 0o700); err != nil {
		return c, &fault.Error{Code: fault.Denied, Op: "node.OpenShared", Key: s.lent, Msg: "a directory for this node cannot be made: " + s.lent, Hint: "set XDG_RUNTIME_DIR", Err: err}
	}
	c.Cluster.Role, c.Data.Dir, c.Data.Shared = RoleSidecar, s.lent, false
	return c, nil
}

// sweep removes directories of sidecars that were killed.
func (s *Shared) sweep() {
	entries, _ := os.ReadDir(s.notes)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), lentDir) || time.Since(info.ModTime()) < lentSweep {
			continue
		}
		dir := filepath.Join(s.notes, e.Name())
		if !inUse(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// inUse reports whether a live node says that its admin socket lies in dir.
func inUse(dir string) bool {
	notes, err := neighbour.List(filepath.Dir(dir))
	for _, n := range notes {
		if filepath.Dir(n.Admin) == dir {
			return true
		}
	}
	return err != nil
}

// announce lets neighbours find a node.
func (s *Shared) announce(n *Node) error {
	a := n.Addresses()
	p, err := neighbour.Announce(s.notes, neighbour.Note{Node: n.host.Identity().Node, Role: string(n.config.Cluster.Role), Gossip: a.Gossip,
		Admin: a.Admin, Apps: n.appIDs(), PID: os.Getpid()})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, p)
	return nil
}

// await takes the directory over as soon as its holder has ended.
func (s *Shared) await(ctx context.Context) {
	hold, err := neighbour.Await(ctx, s.config.Data.Dir, holdPause)
	if ctx.Err() != nil {
		if hold != nil {
			_ = hold.Release()
		}
		return
	}
	if err == nil {
		s.mu.Lock()
		s.hold = hold
		s.mu.Unlock()
		err = s.takeOver(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.failed <- fault.Wrap(err, "node.takeOver", "the data directory "+s.config.Data.Dir+" cannot be taken over")
	}
}

// takeOver opens the server.
func (s *Shared) takeOver(ctx context.Context) error {
	begun := time.Now()
	s.deps.Logger.Info("the node that held the data directory has ended; this process takes it over", "data_dir", s.config.Data.Dir)
	d := s.deps
	d.Registry = nil // the sidecar has registered its metrics already
	n, err := open(ctx, s.successor(), d, place{notes: s.notes, bare: true})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.back = n
	s.mu.Unlock()
	if err := s.announce(n); err != nil {
		return err
	}
	a := n.Addresses()
	s.deps.Logger.Info("this process holds the data directory now", "data_dir", a.DataDir, "took", time.Since(begun).String(), "metrics", a.Metrics, "gossip", a.Gossip, "admin_socket", a.Admin)
	return nil
}

// successor is the configuration of a server that takes the directory over: what it was
// made with counts, and what was given for the sidecar stays the sidecar's.
func (s *Shared) successor() Config {
	c := s.config
	c.Cluster.NodeID, c.Cluster.Partitions, c.Data.LogStore = "", 0, ""
	for _, p := range []*Port{&c.Cluster.Gossip, &c.Cluster.Peer, &c.Metrics.Port} {
		if p.Given {
			*p = Port{Given: true}
		}
	}
	return c
}

// Addresses tells where the node that serves the applications is found. It does not change.
func (s *Shared) Addresses() Addresses { return s.front.Addresses() }

// Wait is as Node.Wait; it returns an error too when the directory could not be taken over.
func (s *Shared) Wait(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.front.Wait(ctx) }()
	select {
	case err := <-done:
		return err
	case err := <-s.failed:
		cancel()
		return errors.Join(err, <-done)
	}
}

// Close stops everything: first the node that serves the applications, which may need the
// server, then the server, and then another process can have the directory. Idempotent.
func (s *Shared) Close(ctx context.Context) error {
	if s.cancel != nil {
		s.cancel()
	}
	s.tasks.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return s.ended
	}
	s.over = true
	var errs []error
	for _, p := range s.left {
		errs = append(errs, p.Close())
	}
	for _, n := range []*Node{s.front, s.back} {
		if n != nil {
			errs = append(errs, n.Close(ctx))
		}
	}
	s.ended = errors.Join(append(errs, s.release())...)
	return s.ended
}

// release gives back what lies on disk.
func (s *Shared) release() error {
	var errs []error
	if s.hold != nil {
		errs = append(errs, s.hold.Release())
	}
	if s.lent != "" {
		errs = append(errs, os.RemoveAll(s.lent))
	}
	return errors.Join(errs...)
}

// neighbourSeeds finds the gossip addresses of the other live nodes of this user on this host.
func (n *Node) neighbourSeeds(context.Context) ([]netip.AddrPort, error) {
	list, err := neighbour.List(n.place.notes)
	var out []netip.AddrPort
	for _, other := range list {
		g := n.gossip.Load()
		if at, bad := netip.ParseAddrPort(other.Gossip); bad == nil && (g == nil || g.Addr() != at) {
			out = append(out, at)
		}
	}
	return out, err
}

func (n *Node) appIDs() []string {
	var out []string
	for _, a := range n.apps() {
		out = append(out, a.ID)
	}
	return out
}
