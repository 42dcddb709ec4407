package group

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

const (
	databasePrefix   = "db-"
	checkpointPrefix = "ckpt-"

	// checkpointLife is how long an unused checkpoint is kept for the next transfer: raft
	// opens the snapshot before it dials, so each retry to a dead peer would make one.
	checkpointLife = 30 * time.Second

	// restoreRaise is added to the revision counter of a restored database, so that no
	// ETag handed out after the backup was taken can ever match again.
	restoreRaise = 1 << 40
)

// snapshots is raft's SnapshotStore over the machine's own database. Taking a snapshot
// copies nothing: it flushes the database and records an index. Bytes are made only when
// a follower needs them, from a checkpoint of hard links. A received snapshot is a
// database directory beside the live one; the manifest's rename makes it the live one.
//
// It owns the manifest and the db- and ckpt- directories of one group. Safe for concurrent use.
type snapshots struct {
	dir     string
	volume  volume
	logger  *slog.Logger
	life    time.Duration                         // how long an unused checkpoint is kept
	open    func(dir string) (*kv.Machine, error) // opens a received database
	machine func() *kv.Machine                    // the live one
	step    func(string)                          // crash point for tests
	held    func(Position) bool                   // whether the log holds an entry
	raise   func(uint8) error                     // see Options.Raise

	mu      sync.Mutex
	current manifest
	next    uint64      // number of the next directory
	pending *pending    // received, durable, not yet handed to the machine
	ckpt    *checkpoint // shared by transfers
}

// pending is a received snapshot between the sink's Close and the machine's Restore.
type pending struct {
	id      string
	machine *kv.Machine
	oldDir  string
}

var _ raft.SnapshotStore = (*snapshots)(nil)

// Create starts a snapshot: a local one if Persist marks the sink, a received one if
// bytes are written to it.
func (s *snapshots) Create(_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	info := &snapshotInfo{Index: index, Term: term, Configuration: raft.EncodeConfiguration(c), ConfigurationIndex: cIndex}
	return &sink{store: s, id: fmt.Sprintf("%d-%d", term, index), info: info}, nil
}

// List returns the one snapshot there is, or none.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return nil, nil
	}
	return []*raft.SnapshotMeta{s.current.Snapshot.meta(s.idLocked())}, nil
}

// configuration returns the index of the configuration that the snapshot holds, 0 for none.
func (s *snapshots) configuration() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return 0
	}
	return s.current.Snapshot.ConfigurationIndex
}

func (s *snapshots) idLocked() string {
	return fmt.Sprintf("%d-%d", s.current.Snapshot.Term, s.current.Snapshot.Index)
}

// Open gives the stream of the current snapshot, or, for one just received, a token that
// Restore turns into the database.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	if s.pending != nil && s.pending.id == id {
		defer s.mu.Unlock()
		meta := s.current.Snapshot.meta(id)
		meta.Size = int64(len(id))
		return meta, io.NopCloser(strings.NewReader(id)), nil
	}
	if s.current.Snapshot == nil || s.idLocked() != id {
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("snapshot %s was replaced by a newer one", id)
	}
	meta := s.current.Snapshot.meta(id)
	s.mu.Unlock()
	c, err := s.checkpoint(meta.Index)
	if err != nil {
		return nil, nil, err
	}
	meta.Size = c.size
	return meta, c.reader(), nil
}

// commitLocal records a snapshot of the live database, which has been flushed.
func (s *snapshots) commitLocal(of string, info *snapshotInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Database != of || (s.current.Snapshot != nil && info.Index < s.current.Snapshot.Index) {
		return fault.New(fault.Unavailable, "group.snapshot", "a snapshot was installed while this one was taken; this one is dropped")
	}
	return s.writeLocked(manifest{Database: of, Snapshot: info, Doubt: s.current.Doubt})
}

// commitReceived makes a received database the one that is opened from now on.
func (s *snapshots) commitReceived(id, dir string, m *kv.Machine, info *snapshotInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		return fault.New(fault.Unavailable, "group.snapshot", "another received snapshot is being installed")
	}
	if s.current.Snapshot != nil && info.Index <= s.current.Snapshot.Index { // taken while this one arrived
		return fault.New(fault.Unavailable, "group.snapshot", "this server's own snapshot is newer than the received one")
	}
	old := s.current.Database
	if err := s.writeLocked(manifest{Database: dir, Snapshot: info}); err != nil {
		return err
	}
	s.pending = &pending{id: id, machine: m, oldDir: old}
	return nil
}

// writeLocked replaces the manifest. The file is small and written a few times an hour;
// the lock must cover it, for the manifest's order is the order of snapshots.
func (s *snapshots) writeLocked(m manifest) error {
	if err := storeManifest(s.volume, s.dir, &m, s.step); err != nil {
		return &fault.Error{Code: fault.Internal, Op: "group.snapshot", Msg: "cannot write the manifest in " + s.dir, Err: err}
	}
	s.current = m
	return nil
}

// database returns the directory of the live database: the one the manifest names, or the
// one before as long as the machine has not been replaced.
func (s *snapshots) database() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		return s.pending.oldDir
	}
	return s.current.Database
}

// index returns the index of the current snapshot, 0 for none.
func (s *snapshots) index() uint64 { return s.position().Index }

// position returns index and term of the current snapshot, zeros for none.
func (s *snapshots) position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return Position{}
	}
	return Position{Term: s.current.Snapshot.Term, Index: s.current.Snapshot.Index}
}

// take hands over the machine of a received snapshot, once.
func (s *snapshots) take(id string) (*pending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil || s.pending.id != id {
		return nil, fault.New(fault.Internal, "group.snapshot", "no received snapshot "+id)
	}
	p := s.pending
	s.pending = nil
	return p, nil
}

// newDir makes a numbered directory.
func (s *snapshots) newDir(prefix string) (string, error) {
	s.mu.Lock()
	s.next++
	name := fmt.Sprintf("%s%06d", prefix, s.next)
	s.mu.Unlock()
	return name, s.volume.mkdir(filepath.Join(s.dir, name))
}

// freeName is newDir without making it: Pebble makes the directory of a checkpoint itself.
func (s *snapshots) freeName(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return fmt.Sprintf("%s%06d", prefix, s.next)
}

func (s *snapshots) remove(name string) {
	if err := s.volume.removeAll(filepath.Join(s.dir, name)); err != nil {
		s.logger.Warn("cannot remove an unused directory; it is removed at the next start", "dir", filepath.Join(s.dir, name), "error", err)
	}
}

// discard removes a received database that was not taken over, unless the manifest on
// disk names it after all: its rename may have worked though a later step failed. Either
// database is good then, and the next start goes by the manifest.
func (s *snapshots) discard(name string) {
	if m, err := loadManifest(s.volume, s.dir); err != nil || m == nil || m.Database == name {
		s.logger.Warn("cannot tell whether a received snapshot was taken over; the next start sorts it out", "dir", s.path(name), "error", err)
		return
	}
	s.remove(name)
}

// close drops what is held for transfers. Transfers must have ended.
func (s *snapshots) close() error {
	s.mu.Lock()
	c, p := s.ckpt, s.pending
	s.ckpt, s.pending = nil, nil
	s.mu.Unlock()
	if c != nil {
		s.remove(c.name)
	}
	if p != nil {
		return p.machine.Close()
	}
	return nil
}

// sink is one snapshot in the making.
type sink struct {
	store *snapshots
	id    string
	info  *snapshotInfo

	local string // database directory a local snapshot is of; empty until Persist marked it
	in    *incoming
	done  bool
}

// incoming unpacks a received stream as it arrives.
type incoming struct {
	dir    string
	pipe   *io.PipeWriter
	result chan error
	got    received
}

// ID names the snapshot towards raft.
func (k *sink) ID() string { return k.id }

// markLocal makes this the snapshot of the live database, which holds every command up to applied on disk.
func (k *sink) markLocal(database string, applied uint64) {
	k.local, k.info.Applied = database, applied
}

// Write takes bytes of a received snapshot.
func (k *sink) Write(p []byte) (int, error) {
	if k.in == nil {
		if err := k.receive(); err != nil {
			return 0, err
		}
	}
	return k.in.pipe.Write(p)
}

func (k *sink) receive() error {
	// What was under way when the request was judged has been done: raft's main goroutine is
	// the one that receives. To install would drop entries that were acknowledged.
	if k.store.held(Position{Term: k.info.Term, Index: k.info.Index}) {
		return fault.New(fault.Unavailable, "group.snapshot", "the entries of this snapshot have arrived meanwhile; the leader is told when it sends it again")
	}
	dir, err := k.store.newDir(databasePrefix)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	in := &incoming{dir: dir, pipe: w, result: make(chan error, 1)}
	go func() {
		var err error
		in.got, err = unpack(k.store.volume, r, filepath.Join(k.store.dir, dir))
		r.CloseWithError(err) // unblocks the writer; nil reads as a closed pipe
		in.result <- err
	}()
	k.in = in
	return nil
}

// Close makes the snapshot durable. After an error nothing has changed.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	switch {
	case k.local != "":
		return k.store.commitLocal(k.local, k.info)
	case k.in != nil:
		err := k.install()
		if err != nil {
			k.store.discard(k.in.dir)
		}
		return err
	default:
		return errors.New("an empty snapshot was closed")
	}
}

// install verifies what was received, opens it, and commits it.
func (k *sink) install() error {
	k.in.pipe.Close()
	if err := <-k.in.result; err != nil {
		return err
	}
	k.store.step("snapshot-received")
	m, err := k.store.open(filepath.Join(k.store.dir, k.in.dir))
	if err != nil {
		return err
	}
	if m.Applied() < k.in.got.applied {
		err = &fault.Error{Code: fault.Corrupt, Op: "group.snapshot",
			Msg: fmt.Sprintf("the received database holds entries up to %d, its sender said %d", m.Applied(), k.in.got.applied)}
	}
	if err == nil && k.in.got.restore {
		err = errors.Join(m.Raise(restoreRaise), m.SetApplied(k.info.Index, k.info.Term))
	}
	if err == nil {
		err = k.store.raise(m.Level())
	}
	if err == nil {
		k.info.Applied = m.Applied()
		err = k.store.volume.syncDir(k.store.dir)
	}
	if err == nil {
		err = k.store.commitReceived(k.id, k.in.dir, m, k.info)
	}
	if err != nil {
		return errors.Join(err, m.Close())
	}
	return nil
}

// Cancel drops the snapshot.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	if k.in != nil {
		k.in.pipe.CloseWithError(errors.New("cancelled"))
		<-k.in.result
		k.store.remove(k.in.dir)
	}
	return nil
}
