package group

import (
	"io"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// checkpoint is a set of hard links to the live database, shared by the transfers that
// start while it is fresh.
type checkpoint struct {
	store   *snapshots
	name    string
	of      string // database it was made of
	floor   uint64 // snapshot index it is good for
	applied uint64
	files   []streamFile
	size    int64

	refs  int         // under store.mu
	timer *time.Timer // under store.mu: removes it when unused for store.life
}

// checkpoint returns a referenced checkpoint that holds at least everything up to index.
func (s *snapshots) checkpoint(index uint64) (*checkpoint, error) { return s.checkpointAt(index, 0) }

// checkpointAt is checkpoint for one that holds every command up to applied too.
func (s *snapshots) checkpointAt(index, want uint64) (*checkpoint, error) {
	if c := s.shared(index); c != nil {
		if c.applied >= want {
			return c, nil
		}
		c.release()
	}
	name, of := s.freeName(checkpointPrefix), s.database()
	dir := filepath.Join(s.dir, name)
	applied, err := s.machine().Checkpoint(dir)
	if err != nil {
		s.remove(name)
		return nil, fault.Wrap(err, "group.snapshot", "cannot make a checkpoint")
	}
	files, err := list(s.volume, dir)
	if err != nil {
		s.remove(name)
		return nil, &fault.Error{Code: fault.Internal, Op: "group.snapshot", Msg: "cannot list checkpoint " + dir, Err: err}
	}
	c := &checkpoint{store: s, name: name, of: of, floor: index, applied: applied, files: files, size: streamSize(files), refs: 1}
	s.share(c)
	return c, nil
}

// shared takes a reference on the kept checkpoint if it serves index.
func (s *snapshots) shared(index uint64) *checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ckpt
	if c == nil || c.of != s.current.Database || c.floor < index {
		return nil
	}
	c.refs++
	if c.timer != nil {
		c.timer.Stop()
	}
	return c
}

// share makes c the kept checkpoint; the one before goes when its last reader closes.
func (s *snapshots) share(c *checkpoint) {
	s.mu.Lock()
	old := s.ckpt
	s.ckpt = c
	drop := old != nil && old.refs == 0
	s.mu.Unlock()
	if drop {
		old.timer.Stop()
		s.remove(old.name)
	}
}

// release gives a reference back.
func (c *checkpoint) release() {
	s := c.store
	s.mu.Lock()
	c.refs--
	last := c.refs == 0
	drop := last && s.ckpt != c
	if last && !drop {
		c.timer = time.AfterFunc(s.life, c.expire)
	}
	s.mu.Unlock()
	if drop {
		s.remove(c.name)
	}
}

// expire removes the checkpoint unless somebody took it again.
func (c *checkpoint) expire() {
	s := c.store
	s.mu.Lock()
	drop := s.ckpt == c && c.refs == 0
	if drop {
		s.ckpt = nil
	}
	s.mu.Unlock()
	if drop {
		s.remove(c.name)
	}
}

// reader streams the checkpoint and releases it on Close.
func (c *checkpoint) reader() io.ReadCloser {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(pack(c.store.volume, w, filepath.Join(c.store.dir, c.name), c.files, c.applied))
	}()
	return &checkpointReader{PipeReader: r, release: func() { <-done; c.release() }}
}

type checkpointReader struct {
	*io.PipeReader
	release func()
	closed  bool
}

// Close ends the transfer. raft calls it once, from the goroutine that read.
func (r *checkpointReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.PipeReader.Close()
	r.release()
	return err
}
