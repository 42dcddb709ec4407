package snapshot

import (
	"io"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Checkpoint is a directory of hard links to the files of the live database. A snapshot is sent from it. Several
// transfers can share a checkpoint that is recent enough for all of them.
type Checkpoint struct {
	store    *Store
	name     string
	database string // directory of the database from which the checkpoint was made
	floor    uint64 // the checkpoint contains every entry up to this index
	applied  uint64
	files    []streamFile
	Size     int64

	refs  int         // under store.mu
	timer *time.Timer // under store.mu: removes the checkpoint when it was unused for CheckpointLife
}

// checkpoint returns a checkpoint that contains at least all entries up to the given index. The caller must close it
// after use.
func (s *Store) checkpoint(index uint64) (*Checkpoint, error) { return s.CheckpointAt(index, 0) }

// CheckpointAt returns a checkpoint that contains every entry up to index and every command up to commandIndex. The
// live machine must have applied all these entries and commands before the call. The caller must close the checkpoint
// after use.
func (s *Store) CheckpointAt(index, commandIndex uint64) (*Checkpoint, error) {
	if c := s.shared(index); c != nil {
		if c.applied >= commandIndex {
			return c, nil
		}
		c.release()
	}
	name, of := s.FreeName(CheckpointPrefix), s.LiveDatabase()
	dir := filepath.Join(s.dir, name)
	applied, err := s.fsm.Machine().Checkpoint(dir)
	if err != nil {
		s.Remove(name)
		return nil, fault.Wrap(err, "group.snapshot", "cannot make a checkpoint")
	}
	files, err := list(s.volume, dir)
	if err != nil {
		s.Remove(name)
		return nil, &fault.Error{Code: fault.Internal, Op: "group.snapshot", Msg: "cannot list checkpoint " + dir,
			Err: err}
	}
	c := &Checkpoint{store: s, name: name, database: of, floor: index, applied: applied, files: files,
		Size: streamSize(files), refs: 1}
	s.share(c)
	return c, nil
}

// shared returns the current checkpoint, and adds a reference to it. It returns nil if the current checkpoint does not
// contain every entry up to index, or was made from another database.
func (s *Store) shared(index uint64) *Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ckpt
	if c == nil || c.database != s.current.Database || c.floor < index {
		return nil
	}
	c.refs++
	if c.timer != nil {
		c.timer.Stop()
	}
	return c
}

// share makes c the current checkpoint. The files of the previous checkpoint are removed when its last reader closes
// it, or at once if it has no reader.
func (s *Store) share(c *Checkpoint) {
	s.mu.Lock()
	old := s.ckpt
	s.ckpt = c
	drop := old != nil && old.refs == 0
	s.mu.Unlock()
	if drop {
		old.timer.Stop()
		s.Remove(old.name)
	}
}

// release removes a reference. When no reference is left, the checkpoint is removed after CheckpointLife, or at once if
// it is not the current checkpoint any more.
func (c *Checkpoint) release() {
	s := c.store
	s.mu.Lock()
	c.refs--
	last := c.refs == 0
	drop := last && s.ckpt != c
	if last && !drop {
		c.timer = time.AfterFunc(s.CheckpointLife, c.expire)
	}
	s.mu.Unlock()
	if drop {
		s.Remove(c.name)
	}
}

// expire removes the checkpoint unless it has a new reference.
func (c *Checkpoint) expire() {
	s := c.store
	s.mu.Lock()
	drop := s.ckpt == c && c.refs == 0
	if drop {
		s.ckpt = nil
	}
	s.mu.Unlock()
	if drop {
		s.Remove(c.name)
	}
}

// Reader returns a stream with the files of the checkpoint. The stream releases the checkpoint when it is closed.
func (c *Checkpoint) Reader() io.ReadCloser {
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

// Close ends the transfer and releases the checkpoint. Call it on the goroutine that reads. Later calls do nothing.
func (r *checkpointReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.PipeReader.Close()
	r.release()
	return err
}
