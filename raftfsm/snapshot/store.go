package snapshot

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
	"github.com/quorate/quorate/raftfsm/raftlog"
)

const (
	DatabasePrefix   = "db-"
	CheckpointPrefix = "ckpt-"

	// checkpointLife is how long an unused checkpoint is kept for a later transfer. Raft opens a snapshot, which needs
	// a checkpoint, before it connects to the follower. If checkpoints were not kept, every attempt to reach an
	// unreachable follower would create one.
	checkpointLife = 30 * time.Second

	// RestoreRaise is added to the revision counter of a database that was restored from a backup or rescued. Such a
	// database may lack revisions that clients already have as ETags. The increase ensures that these revisions are
	// never used again.
	RestoreRaise = 1 << 40
)

// Store implements raft.SnapshotStore with the database of the state machine. Taking a snapshot copies nothing:
// Store flushes the database and records an index. It sends a snapshot from a checkpoint of hard links. It unpacks a
// received snapshot into a new database directory, which becomes the live one when the manifest is replaced.
//
// Store owns the manifest and the directories db- and ckpt- of one group. It is safe for concurrent use.
type Store struct {
	group          uint32 // for logs
	dir            string
	volume         raftlog.Volume
	logger         *slog.Logger
	CheckpointLife time.Duration // how long an unused checkpoint is kept
	database       kv.Options    // options of a database, except its directory
	process        Process
	log            Log
	floor          Floor
	fsm            *FSM

	mu      sync.Mutex
	current Manifest
	next    uint64      // number of the next new directory
	pending *pending    // received snapshot that the manifest names and FSM.Restore has not taken yet; nil = none
	ckpt    *Checkpoint // the newest checkpoint, which transfers share; nil = none
}

// pending is a received snapshot that FSM.Restore has not taken yet. Its sink is already closed.
type pending struct {
	id      string
	machine *kv.Machine // nil = the live machine is kept
	oldDir  string      // directory of the live machine's database
}

var _ raft.SnapshotStore = (*Store)(nil)

// Log is the part of the log that snapshots need.
type Log interface {
	// HoldsAt reports whether the log has the entry with the index and the term of the given position.
	HoldsAt(at raftlog.Position) bool
	// RaiseTo records durably that the group may contain entries of the given version.
	RaiseTo(version uint8) error
	// Applied records that the state machine has applied all entries up to the given index.
	Applied(index uint64)
}

// Floor is the floor file (see raftlog.FloorFile). Store writes it after each local or received snapshot.
type Floor interface{ Write() error }

// Process contains the hook Step, which is called before and after each step of disk work, for crash tests.
type Process interface{ Step(name string) }

// Config configures a Store. All fields are required.
type Config struct {
	Group    uint32 // for logs
	Dir      string
	Volume   raftlog.Volume
	Logger   *slog.Logger
	Database kv.Options // options of a database, except its directory
	Process  Process
	Log      Log
	Floor    Floor
}

// NewStore creates a Store for the database and the snapshot that are named in the manifest. The caller must then
// create the FSM with NewFSM.
func NewStore(c Config, man *Manifest) *Store {
	return &Store{
		group: c.Group, dir: c.Dir, volume: c.Volume, logger: c.Logger, CheckpointLife: checkpointLife,
		database: c.Database,
		process:  c.Process, log: c.Log, floor: c.Floor, current: *man,
	}
}

// OpenDatabase opens the database in dir, with the options of the Store.
func (s *Store) OpenDatabase(dir string) (*kv.Machine, error) {
	o := s.database
	o.Dir = dir
	return kv.Open(o)
}

// WriteFloor writes the floor file if it has changed. If this fails, it logs the error, and the next call tries again.
func (s *Store) WriteFloor() {
	if err := s.floor.Write(); err != nil {
		s.logger.Warn("the floor file, the second record of votes and acknowledged entries, cannot be "+
			"written; it is tried again", "group", s.group, "error", err)
	}
}

// Info returns the current snapshot; the zero Info if there is none.
func (s *Store) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return Info{}
	}
	return *s.current.Snapshot
}

// CommitRescued records a snapshot of the live database during a rescue. It also clears Manifest.Doubt, so that the
// database is trusted again.
func (s *Store) CommitRescued(info *Info) error {
	s.mu.Lock()
	s.current.Doubt = nil
	s.mu.Unlock()
	return s.CommitLocal(s.LiveDatabase(), info)
}

// Create returns a sink for a new snapshot. For a local snapshot, Persist calls markLocal on the sink, and the snapshot
// then refers to the live database. For a snapshot from another server, raft writes the received bytes to the sink.
func (s *Store) Create(_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64,
	_ raft.Transport) (raft.SnapshotSink, error) {
	info := &Info{Index: index, Term: term, Configuration: raft.EncodeConfiguration(c), ConfigurationIndex: cIndex}
	return &sink{store: s, id: fmt.Sprintf("%d-%d", term, index), info: info}, nil
}

// List returns the current snapshot, if any.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return nil, nil
	}
	return []*raft.SnapshotMeta{s.current.Snapshot.meta(s.idLocked())}, nil
}

// Configuration returns the index of the configuration in the snapshot; 0 = none.
func (s *Store) Configuration() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return 0
	}
	return s.current.Snapshot.ConfigurationIndex
}

func (s *Store) idLocked() string {
	return fmt.Sprintf("%d-%d", s.current.Snapshot.Term, s.current.Snapshot.Index)
}

// Open returns the content of the current snapshot as a stream. For a snapshot that was just received, the stream
// contains only a token. FSM.Restore exchanges the token for the received database.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
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
	meta.Size = c.Size
	return meta, c.Reader(), nil
}

// CommitLocal records a snapshot of the live database. The caller has flushed the database, and passes its directory.
// CommitLocal returns fault.Unavailable if a received snapshot has replaced the database in the meantime, or if a newer
// snapshot is recorded.
func (s *Store) CommitLocal(database string, info *Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Database != database || (s.current.Snapshot != nil && info.Index < s.current.Snapshot.Index) {
		return fault.New(fault.Unavailable, "group.snapshot",
			"a snapshot was installed while this one was taken; this one is dropped")
	}
	return s.writeLocked(Manifest{Database: database, Snapshot: info, Doubt: s.current.Doubt})
}

// commitReceived records the received database in the directory dir as the live one. It returns fault.Unavailable if
// another received snapshot is being installed, or if the current snapshot is at least as new as info.
func (s *Store) commitReceived(id, dir string, m *kv.Machine, info *Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.acceptsLocked(info); err != nil {
		return err
	}
	old := s.current.Database
	if err := s.writeLocked(Manifest{Database: dir, Snapshot: info}); err != nil {
		return err
	}
	s.pending = &pending{id: id, machine: m, oldDir: old}
	return nil
}

// commitKept records the position of a received snapshot whose database is not used. The live database stays in use. It
// is in the given directory, and must have all commands up to info.Applied on disk.
//
// commitKept returns fault.Unavailable if another database is live by now. It also returns the errors of acceptsLocked.
func (s *Store) commitKept(id, database string, info *Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.acceptsLocked(info); err != nil {
		return err
	}
	if s.current.Database != database {
		return fault.New(fault.Unavailable, "group.snapshot",
			"the database was replaced while a snapshot was received; the snapshot is dropped")
	}
	if err := s.writeLocked(Manifest{Database: database, Snapshot: info, Doubt: s.current.Doubt}); err != nil {
		return err
	}
	s.pending = &pending{id: id, oldDir: database}
	return nil
}

// acceptsLocked returns fault.Unavailable if another received snapshot is being installed, or if the current
// snapshot is at least as new as info.
func (s *Store) acceptsLocked(info *Info) error {
	if s.pending != nil {
		return fault.New(fault.Unavailable, "group.snapshot", "another received snapshot is being installed")
	}
	// a newer local snapshot was taken during the transfer
	if s.current.Snapshot != nil && info.Index <= s.current.Snapshot.Index {
		return fault.New(fault.Unavailable, "group.snapshot",
			"this server's own snapshot is newer than the received one")
	}
	return nil
}

// writeLocked replaces the manifest. The caller holds s.mu during the write, so that manifests are written in the order
// of their snapshots.
func (s *Store) writeLocked(m Manifest) error {
	if err := StoreManifest(s.volume, s.dir, &m, s.process); err != nil {
		return &fault.Error{Code: fault.Internal, Op: "group.snapshot", Msg: "cannot write the manifest in " + s.dir,
			Err: err}
	}
	s.current = m
	return nil
}

// LiveDatabase returns the directory of the database that the live machine uses. After a snapshot was received, the
// manifest already names the received database. Until FSM.Restore takes that database, LiveDatabase returns the
// previous one.
func (s *Store) LiveDatabase() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		return s.pending.oldDir
	}
	return s.current.Database
}

// Extent returns the index of the current snapshot, or 0 if there is none. applied is the index of the newest
// command that is on disk in the database, according to the manifest.
func (s *Store) Extent() (index, applied uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return 0, 0
	}
	return s.current.Snapshot.Index, s.current.Snapshot.Applied
}

// Index returns the index of the current snapshot; 0 = none.
func (s *Store) Index() uint64 { return s.Position().Index }

// Position returns index and term of the current snapshot; zero = none.
func (s *Store) Position() raftlog.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Snapshot == nil {
		return raftlog.Position{}
	}
	return raftlog.Position{Term: s.current.Snapshot.Term, Index: s.current.Snapshot.Index}
}

// Take returns the received snapshot with the given id to the FSM, which then makes the machine of the snapshot the
// live one. This machine is nil if the present machine stays live. A second call for the same snapshot returns
// fault.Internal.
func (s *Store) Take(id string) (*pending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil || s.pending.id != id {
		return nil, fault.New(fault.Internal, "group.snapshot", "no received snapshot "+id)
	}
	p := s.pending
	s.pending = nil
	return p, nil
}

// NewDir creates a directory in the directory of the group. It returns the name: prefix followed by an unused number.
func (s *Store) NewDir(prefix string) (string, error) {
	s.mu.Lock()
	s.next++
	name := fmt.Sprintf("%s%06d", prefix, s.next)
	s.mu.Unlock()
	return name, s.volume.Mkdir(filepath.Join(s.dir, name))
}

// FreeName returns an unused name for a directory: prefix followed by a number. It does not create the directory;
// Pebble creates it for a checkpoint.
func (s *Store) FreeName(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return fmt.Sprintf("%s%06d", prefix, s.next)
}

// Remove removes a directory of the group. An error is only logged.
func (s *Store) Remove(name string) {
	if err := s.volume.RemoveAll(filepath.Join(s.dir, name)); err != nil {
		s.logger.Warn("cannot remove an unused directory; it is removed at the next start",
			"dir", filepath.Join(s.dir, name), "error", err)
	}
}

// Discard removes a received database that did not become the live one. It keeps the database if the manifest names it,
// because a write of the manifest may take effect and still return an error. It also keeps the database if the manifest
// cannot be read.
func (s *Store) Discard(name string) {
	if m, err := LoadManifest(s.volume, s.dir); err != nil || m == nil || m.Database == name {
		s.logger.Warn("it is not known whether a received snapshot was installed; the next start determines it",
			"dir", s.Path(name), "error", err)
		return
	}
	s.Remove(name)
}

// Close removes the checkpoint that is kept for transfers, and closes a received database that is not live yet.
// Transfers must have ended.
func (s *Store) Close() error {
	s.mu.Lock()
	c, p := s.ckpt, s.pending
	s.ckpt, s.pending = nil, nil
	s.mu.Unlock()
	if c != nil {
		s.Remove(c.name)
	}
	if p != nil && p.machine != nil {
		return p.machine.Close()
	}
	return nil
}

// sink is where raft writes one snapshot: a local one, or the bytes of a received one.
type sink struct {
	store *Store
	id    string
	info  *Info

	local string // directory of the live database for a local snapshot; empty until Persist has marked the sink
	in    *incoming
	done  bool
}

// incoming unpacks a stream while it is received.
type incoming struct {
	dir    string
	pipe   *io.PipeWriter
	result chan error
	got    Received
}

// ID returns raft's name of the snapshot.
func (k *sink) ID() string { return k.id }

// markLocal records that this sink is for a snapshot of the live database, which is in the given directory. The
// database must have all commands up to the applied index on disk.
func (k *sink) markLocal(database string, applied uint64) {
	k.local, k.info.Applied = database, applied
}

// Write receives bytes of a snapshot.
func (k *sink) Write(p []byte) (int, error) {
	if k.in == nil {
		if err := k.receive(); err != nil {
			return 0, err
		}
	}
	return k.in.pipe.Write(p)
}

func (k *sink) receive() error {
	// Raft's main goroutine receives snapshots, so entries that were in flight when Judge ran are stored by now. If
	// the log contains the end of the snapshot, refuse it: installing it would drop acknowledged entries.
	if k.store.log.HoldsAt(raftlog.Position{Term: k.info.Term, Index: k.info.Index}) {
		return fault.New(fault.Unavailable, "group.snapshot",
			"the entries of this snapshot have arrived meanwhile")
	}
	dir, err := k.store.NewDir(DatabasePrefix)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	in := &incoming{dir: dir, pipe: w, result: make(chan error, 1)}
	go func() {
		var err error
		in.got, err = Unpack(k.store.volume, r, filepath.Join(k.store.dir, dir))
		r.CloseWithError(err) // unblocks the writer; nil reads as a closed pipe
		in.result <- err
	}()
	k.in = in
	return nil
}

// Close makes the snapshot durable. After an error, the manifest usually still names the previous snapshot; see
// Store.Discard for the exception.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	switch {
	case k.local != "":
		if err := k.store.CommitLocal(k.local, k.info); err != nil {
			return err
		}
		k.store.WriteFloor()
		return nil
	case k.in != nil:
		err := k.install()
		if err != nil {
			k.store.Discard(k.in.dir)
			return err
		}
		k.store.WriteFloor()
		return nil
	default:
		return errors.New("the snapshot is empty")
	}
}

// install verifies the received data, opens the received database, and records it in the manifest. If the live database
// is trusted and ahead of the received one, install keeps the live database, and records only the position of the
// snapshot. The snapshot of a restore always replaces the live database.
func (k *sink) install() error {
	k.in.pipe.Close()
	if err := <-k.in.result; err != nil {
		return err
	}
	k.store.process.Step("snapshot-received")
	m, err := k.store.OpenDatabase(filepath.Join(k.store.dir, k.in.dir))
	if err != nil {
		return err
	}
	if m.Applied() < k.in.got.applied {
		err = &fault.Error{Code: fault.Corrupt, Op: "group.snapshot",
			Msg: fmt.Sprintf("the received database holds entries up to %d, its sender reported %d", m.Applied(),
				k.in.got.applied)}
	}
	if err == nil && k.in.got.Restore {
		err = errors.Join(m.Raise(RestoreRaise), m.SetApplied(k.info.Index, k.info.Term))
	}
	if err == nil {
		err = k.store.log.RaiseTo(m.Level())
	}
	if err == nil {
		k.info.Applied = m.Applied()
		err = k.store.volume.SyncDir(k.store.dir)
	}
	if err != nil {
		return errors.Join(err, m.Close())
	}
	if live, database := k.store.fsm.ahead(m.Applied()); live != nil && !k.in.got.Restore {
		if err := m.Close(); err != nil {
			return err
		}
		return k.keep(live, database)
	}
	if err := k.store.commitReceived(k.id, k.in.dir, m, k.info); err != nil {
		return errors.Join(err, m.Close())
	}
	return nil
}

// keep records the position of the received snapshot, but does not use its database. The live machine stays in use,
// because it has applied more. The caller passes this machine and the directory of its database.
//
// Invariant: a snapshot does not move a trusted machine back. Otherwise a strong read that has waited for an entry
// could read a state without that entry.
//
// The live machine can be ahead of its log: an earlier received database may contain more entries than its snapshot
// covers. The leader knows only the log of this server, so it may send a snapshot that is older than the live machine.
//
// It is safe to keep the live machine, because both databases have applied a prefix of the same committed entries. Raft
// continues at the end of the snapshot, and the live machine skips the entries that it has already applied.
//
// Refusing the snapshot would not be safe. If the leader needs this server to commit entries, it could never create a
// newer snapshot.
func (k *sink) keep(live *kv.Machine, database string) error {
	received := k.info.Applied
	var err error
	if k.info.Applied, err = live.Flush(); err != nil {
		return err
	}
	if err := k.store.commitKept(k.id, database, k.info); err != nil {
		return err
	}
	k.store.logger.Info("a received snapshot is older than the database of this server; the database is kept",
		"group", k.store.group, "snapshot", k.info.Index, "received", received, "applied", k.info.Applied)
	k.store.Remove(k.in.dir)
	return nil
}

// Cancel drops the snapshot, and removes the received files.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	if k.in != nil {
		k.in.pipe.CloseWithError(errors.New("cancelled"))
		<-k.in.result
		k.store.Remove(k.in.dir)
	}
	return nil
}
