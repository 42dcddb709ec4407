package shareddir

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/raftfsm/datadir"
)

// Part is the role of a node among the nodes that share a directory.
type Part uint8

// The parts.
const (
	Holder    Part = iota // a server on the shared directory, with applications
	Attached              // a sidecar with applications
	Successor             // a server on the shared directory, without applications
)

// Plan describes the node to open.
type Plan struct {
	Part  Part
	Dir   string // data directory
	Notes string // directory with the notes of live nodes
	Token string // file with the token that secures traffic between the nodes; empty = use the settings
}

// Node is a node that runs.
type Node interface {
	// Note describes the node for the other nodes of this user.
	Note() hostshare.Note
	// MetricsAddr returns the address of the metrics listener; empty = off.
	MetricsAddr() string
	// Wait returns when the node must be closed. The error is nil if the stop was requested.
	Wait(ctx context.Context) error
	// Close stops the node.
	Close(ctx context.Context) error
}

// Opener opens nodes.
type Opener interface {
	Open(ctx context.Context, p Plan) (Node, error)
}

// Options are the settings of a shared directory. Dir, RuntimeDir, Opener and Logger are required.
type Options struct {
	Dir        string // data directory
	RuntimeDir string // the user's directory for sockets
	MakeToken  bool   // secure the traffic between the nodes with a token that the first node creates
	Opener     Opener
	Logger     *slog.Logger
}

// Shared is a node on a shared data directory. It is safe for concurrent use.
//
// A process may open a server on the directory only while it has the lock of the directory (hostshare.Hold).
type Shared struct {
	opts  Options
	notes string // directory of the notes of live nodes
	token string // see Plan.Token
	front Node   // serves the applications
	lent  string // data directory of a sidecar, removed by Close; empty = front is the server

	cancel context.CancelFunc // ends the wait for the directory
	tasks  sync.WaitGroup     // goroutines that cancel ends
	waits  sync.WaitGroup     // goroutine that waits until back stops; Close ends it by closing back
	failed chan error         // capacity 1: the error of a failed takeover, or the result of back.Wait

	mu    sync.Mutex
	hold  *hostshare.Hold       // nil = another process has the directory
	back  Node                  // the server that this process opened at a takeover; nil = none
	left  []*hostshare.Presence // notes of the nodes of this process
	over  bool                  // Close was called
	ended error                 // result of Close
}

const (
	holdPause = 50 * time.Millisecond // between checks whether another process still holds the directory
	// takeOverPause is the pause between two attempts to take over the directory. An attempt fails while the process of
	// the previous holder is still closing its files.
	takeOverPause = time.Second
	// tokenSuffix is appended to the path of the shared directory to form the path of the token file. The token secures
	// the traffic between the nodes of the directory.
	tokenSuffix = ".token"
	lentDir     = "at-"       // prefix of the name of a sidecar's directory, which is beside the notes
	lentSweep   = time.Minute // age from which an unused directory of a sidecar is removed
)

// Open opens a node on the shared directory. If another process already has the directory open, the node is a sidecar
// of the server in that process.
func Open(ctx context.Context, o Options) (*Shared, error) {
	sum := sha256.Sum256([]byte(o.Dir))
	s := &Shared{opts: o, notes: filepath.Join(o.RuntimeDir, hex.EncodeToString(sum[:8])),
		failed: make(chan error, 1)}
	if err := hostshare.Private(o.RuntimeDir); err != nil {
		return nil, err
	}
	if err := hostshare.Private(s.notes); err != nil {
		return nil, err
	}
	s.sweep()
	hold, ok, err := hostshare.TryHold(o.Dir)
	if err != nil {
		return nil, err
	}
	s.hold = hold
	if err := s.secure(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	first := s.plan(Holder, o.Dir)
	if !ok {
		if err := s.lend(); err != nil {
			return nil, err
		}
		first = s.plan(Attached, s.lent)
	}
	if s.front, err = o.Opener.Open(ctx, first); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if err := s.announce(s.front); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	waiting, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if !ok {
		o.Logger.Info("attached to the node that holds the data directory", "data_dir", o.Dir)
		s.tasks.Go(func() { s.await(waiting) })
	}
	return s, nil
}

func (s *Shared) plan(p Part, dir string) Plan {
	return Plan{Part: p, Dir: dir, Notes: s.notes, Token: s.token}
}

// secure reads or creates the token file beside the directory, if Options.MakeToken is set.
func (s *Shared) secure() (err error) {
	if !s.opts.MakeToken {
		return nil
	}
	dir := s.opts.Dir
	s.token, err = hostshare.Secret(filepath.Dir(dir), filepath.Base(dir)+tokenSuffix, func() string {
		return trust.NewToken().Reveal()
	})
	return err
}

// lend creates a new directory for the sidecar of this process, and stores its path in s.lent.
func (s *Shared) lend() error {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	s.lent = filepath.Join(s.notes, lentDir+hex.EncodeToString(b[:]))
	if err := os.Mkdir(s.lent, 0o700); err != nil {
		return &fault.Error{Code: fault.Denied, Op: "node.OpenShared", Key: s.lent,
			Msg: "a directory for this node cannot be made: " + s.lent, Hint: "set XDG_RUNTIME_DIR", Err: err}
	}
	return nil
}

// sweep removes the directories that killed sidecars have left.
func (s *Shared) sweep() {
	entries, _ := os.ReadDir(s.notes)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), lentDir) || time.Since(info.ModTime()) < lentSweep {
			continue
		}
		dir := filepath.Join(s.notes, e.Name())
		lock, err := datadir.LockDir(dir)
		if err != nil {
			continue // a running sidecar has the lock
		}
		_ = os.RemoveAll(dir)
		_ = lock.Release()
	}
}

// announce writes the note with which other nodes find the node n.
func (s *Shared) announce(n Node) error {
	p, err := hostshare.Announce(s.notes, n.Note())
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
	hold, err := hostshare.Await(ctx, s.opts.Dir, holdPause, s.opts.Logger)
	if err != nil {
		return
	}
	if ctx.Err() != nil {
		_ = hold.Release()
		return
	}
	s.mu.Lock()
	s.hold = hold
	s.mu.Unlock()
	err = s.takeOver(ctx)
	for fault.Is(err, fault.Unavailable) && !s.holds() {
		// The process that held the directory may still be closing its files.
		s.opts.Logger.Warn("the data directory cannot be taken over yet; trying again", "data_dir", s.opts.Dir,
			"error", err)
		select {
		case <-time.After(takeOverPause):
			err = s.takeOver(ctx)
		case <-ctx.Done():
			return
		}
	}
	if err != nil && ctx.Err() == nil {
		s.fail(fault.Wrap(err, "node.takeOver", "the data directory "+s.opts.Dir+" cannot be taken over"))
	}
}

// holds reports whether this process runs the server on the directory.
func (s *Shared) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back != nil
}

// fail makes Wait return. Only the first reason counts.
func (s *Shared) fail(reason error) {
	select {
	case s.failed <- reason:
	default:
	}
}

// takeOver opens the server on the shared directory, and announces it to other nodes.
func (s *Shared) takeOver(ctx context.Context) error {
	begun := time.Now()
	s.opts.Logger.Info("the node that held the data directory has ended; this process takes it over", "data_dir",
		s.opts.Dir)
	n, err := s.opts.Opener.Open(ctx, s.plan(Successor, s.opts.Dir))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.back = n
	s.mu.Unlock()
	// Wait returns if an operator stops the server, or if another node has the same node id. Close ends the wait too.
	s.waits.Go(func() { s.fail(n.Wait(context.Background())) })
	if err := s.announce(n); err != nil {
		return err
	}
	note := n.Note()
	s.opts.Logger.Info("this process holds the data directory now", "data_dir", s.opts.Dir, "took",
		time.Since(begun).String(), "metrics", n.MetricsAddr(), "gossip", note.Gossip, "admin_socket", note.Admin)
	return nil
}

// Wait blocks until this process must stop. This is the case when Node.Wait returns for one of its nodes: the node that
// serves the applications or, after a takeover, the server on the directory. Wait then returns the error of Node.Wait.
// If this process fails to take over the directory, Wait returns the error of the takeover.
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

// Close closes the nodes of this process and then releases the directory. It first closes the node that serves the
// applications, because this node may need the server that a takeover has opened. Further calls return the same error.
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
	for _, n := range []Node{s.front, s.back} {
		if n != nil {
			errs = append(errs, n.Close(ctx))
		}
	}
	s.waits.Wait()
	s.ended = errors.Join(append(errs, s.release())...)
	return s.ended
}

// release removes this node's files and releases the directory.
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
