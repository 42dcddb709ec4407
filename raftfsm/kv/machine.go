package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// Options are the settings of a machine. Dir and Fatal are required.
type Options struct {
	Dir string // database directory; no other process may write in it
	FS  vfs.FS // nil = the operating system's, with slow operations logged
	// Cache is the shared block cache, which also accounts for the memory of memtables. The caller keeps its own
	// reference. nil = the machine creates a cache of 8 MiB plus three times MemTable.
	Cache *pebble.Cache
	// MemTable is the size of a memtable in bytes; default 16 MiB. At most two memtables are in memory. The cache of
	// recently written rows takes another quarter of this size, and so does the cache of recently read records.
	MemTable uint64
	Logger   *slog.Logger // nil = no log

	// Fatal is required. The machine calls it when it cannot continue: because of an entry that it cannot apply,
	// damaged data, or failed storage. It is called at most once, on its own goroutine. It must not panic; it may
	// call Close. It should end the process or have the replica replaced. After a failure inside Pebble, a running
	// Apply may never return. Close then can neither end Pebble's goroutines nor release its lock on the directory.
	Fatal func(error)

	// Backoff is called before storage is retried; failures is the number of consecutive failures in the background.
	// It may sleep. nil = retries on a full disk follow each other without a pause.
	Backoff func(failures int)

	// MarkPeriod is in milliseconds of cluster time; 0 = no marks. The machine records a mark (see Marks) at every
	// entry that advances cluster time past a multiple of MarkPeriod.
	MarkPeriod uint64

	// Newest is the newest version of log entries that the machine applies; 0 = command.Version. Tests set a greater
	// version to simulate a newer build.
	Newest uint8
}

// Machine is the state machine of one group. Only one goroutine at a time may call Apply, Raise or SetApplied. All
// other methods are safe for concurrent use. After Close, or after storage has failed, methods that use the database
// return errors or zero values.
type Machine struct {
	dir      string
	fs       vfs.FS
	period   uint64 // Options.MarkPeriod
	newest   uint8  // Options.Newest
	rowBytes uint64 // size limit of the rows the writer caches
	db       *pebble.DB
	lock     *pebble.Lock // on the directory; nil if Pebble took it itself
	gate     *gate
	health   *health
	waiters  waiters
	feeds    listeners
	state    atomic.Pointer[state]
	// firstDueOf caches what NextDue has last read from the database.
	firstDueOf atomic.Pointer[dueOfState]
	// ahead is the cluster time of the newest batch that may be in the database, published or not.
	ahead   atomic.Uint64
	visible atomic.Uint64 // applied index of that batch
	// era selects the set of tables that readers use: the live set of the newest batch that may be in the database.
	era     atomic.Uint64 // an era
	marks   atomic.Pointer[[]Mark]
	exports exports
	locks   storeChanges
	dues    storeChanges
	topics  storeChanges
	// workflows is set when a restore has replaced the records of WorkflowStore
	workflows atomic.Bool
	buffers   sync.Pool // *[]byte, for keys of reads
	reads     *readCache
	writer    *writer // owned by the goroutine that applies
	// deletions is the number of deletions since the last FlushDeletions
	deletions atomic.Int64
	closing   sync.Once
	closed    error // result of the first Close
}

// state is the newest published state, which readers load without a lock. Machine.publish replaces it as a whole.
type state struct {
	meta
	origins   int
	originDue uint64 // when the first origin will have been idle for too long; never = none
	dueFloor  uint64 // no item of the due index expires before this cluster time
	terms     terms

	historyDue   uint64 // lower bound of the time at which a history must be trimmed or switched off; never = none
	histories    int
	historyBytes uint64
}

// never is an expiry that cluster time never reaches.
const never = ^uint64(0)

// Create creates a new, empty machine. The machine is durable when Create returns a nil error. Create returns
// fault.Invalid if the directory already contains a database, or if Dir or Fatal is not set. If the disk cannot be
// written, Create returns fault.Unavailable or fault.Internal, and the caller must remove the directory before it tries
// again.
func Create(o Options) (*Machine, error) {
	found, err := peek(&o)
	if err != nil {
		return nil, err
	}
	if found {
		return nil, &fault.Error{
			Code: fault.Invalid, Op: "kv.Create", Msg: "there is a database in " + o.Dir + " already",
			Hint: "open it, or name another directory",
		}
	}
	m, err := open(o, func(p *pebble.Options) { p.ErrorIfExists = true })
	if err != nil {
		return nil, errUnusable("kv.Create", "cannot make a database in "+o.Dir, err)
	}
	return m.opened(m.start(meta{level: command.First}))
}

// opened is the last step of Create and Open. If an earlier step has failed, opened closes the machine and returns the
// error. Otherwise it returns the machine, which reports all later failures to Options.Fatal.
func (m *Machine) opened(err error) (*Machine, error) {
	m.health.opening.Store(false)
	if err := keep(err, m.health.readable()); err != nil {
		return nil, keep(err, m.Close())
	}
	return m, nil
}

// start writes the first meta record and flushes it to disk.
func (m *Machine) start(first meta) error {
	if err := m.db.Set(metaKey(), first.append(nil), pebble.NoSync); err != nil {
		return errStorage("kv.Create", "the first record could not be written", err)
	}
	m.writer = newWriter(m.db, first, m.rowBytes)
	m.writer.period = m.period
	m.publish()
	_, err := m.Flush()
	return err
}

// Open opens an existing machine. It returns one of these errors:
//
//   - fault.Invalid if the directory contains no database, or if another program or a newer version has written it.
//   - fault.Corrupt if the database is damaged.
//   - fault.Unavailable if another process uses the database.
//   - fault.Unavailable or fault.Internal if the disk cannot be read.
func Open(o Options) (*Machine, error) {
	found, err := peek(&o)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, &fault.Error{
			Code: fault.Invalid, Op: "kv.Open", Msg: "there is no database in " + o.Dir,
			Hint: "check the data directory; a lost database is copied from the other replicas, or restore a backup",
		}
	}
	lock, err := pebble.LockDirectory(o.Dir, files(&o))
	if err != nil {
		return nil, &fault.Error{
			Code: fault.Unavailable, Op: "kv.Open", Msg: "the database in " + o.Dir +
				" is in use by another process", Err: err,
			Hint: "end that process, or name another data directory",
		}
	}
	m, err := open(o, func(p *pebble.Options) { p.ErrorIfNotExists, p.Lock = true, lock })
	if err != nil {
		return nil, errOpening(&o, errors.Join(err, lock.Close()))
	}
	m.lock = lock
	return m.opened(m.load())
}

// peek gives unset options in o their defaults, and reports whether the directory contains a database. It changes
// nothing on disk. Call peek before pebble.Open, because pebble.Open creates files in any directory.
func peek(o *Options) (found bool, err error) {
	if o.Fatal == nil || o.Dir == "" {
		return false, fault.New(fault.Invalid, "kv.Open", "Options.Dir and Options.Fatal must be set")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MemTable == 0 {
		o.MemTable = defaultMemTable
	}
	if o.Newest == 0 {
		o.Newest = command.Version
	}
	d, err := pebble.Peek(o.Dir, files(o))
	var disk *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.As(err, &disk):
		return false, errUnusable("kv.Open", "cannot read "+o.Dir, err)
	case err != nil:
		return false, errNewerEngine(o.Dir, err)
	case d.Exists && d.FormatMajorVersion > pebbleFormat:
		return false, errNewerEngine(o.Dir, fmt.Errorf("the storage format is %d", d.FormatMajorVersion))
	}
	return d.Exists, nil
}

func files(o *Options) vfs.FS {
	if o.FS == nil {
		return vfs.Default
	}
	return o.FS
}

func errNewerEngine(dir string, err error) error {
	return &fault.Error{
		Code: fault.Invalid, Op: "kv.Open", Err: err,
		Msg: fmt.Sprintf("the database in %s is not one that this build can open: it understands storage formats "+
			"up to %d", dir, pebbleFormat),
		Hint: "it was probably written by a newer version: run that one; nothing was changed",
	}
}

func open(o Options, adjust func(*pebble.Options)) (*Machine, error) {
	health := newHealth(o.Logger, o.Fatal)
	e := &engine{health: health}
	p := e.pebbleOptions(o)
	adjust(p)
	db, err := e.open(o.Dir, p)
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: o.Dir, fs: files(&o), period: o.MarkPeriod, newest: o.Newest, rowBytes: o.MemTable / 4, db: db,
		gate: newGate(), health: health, reads: newReadCache(o.MemTable / 4)}
	m.dues.limit, m.topics.limit = maxChanges, maxChanges
	m.buffers.New = func() any { return new([]byte) }
	return m, nil
}

// errOpening returns the error for a failed pebble.Open. The code is fault.Unavailable if the disk reported an error,
// and otherwise fault.Corrupt. Every other failure counts as damage, because Pebble reports only some kinds of damage
// as corruption.
//
// The message names Pebble's options file if that file is damaged, and otherwise the MANIFEST.
func errOpening(o *Options, err error) error {
	msg := "cannot open the database in " + o.Dir
	if d, peeked := pebble.Peek(o.Dir, files(o)); peeked == nil && d.Exists {
		msg = "cannot open the database of " + d.ManifestFilename
		if damaged := damagedOptions(files(o), d.OptionsFilename); damaged != nil {
			return damaged
		}
	}
	var disk *fs.PathError
	if errors.As(err, &disk) && !errors.Is(err, fs.ErrNotExist) && !isCorruption(err) {
		return errUnusable("kv.Open", msg, err)
	}
	return errDamaged("kv.Open", msg, err)
}

func errUnusable(op, msg string, err error) error {
	return &fault.Error{
		Code: fault.Unavailable, Op: op, Msg: msg, Err: err,
		Hint: "check the directory's permissions, the free space and the disk",
	}
}

// load reads from the database the state that the machine keeps in memory.
func (m *Machine) load() error {
	raw, closer, err := m.db.Get(metaKey())
	if errors.Is(err, pebble.ErrNotFound) {
		return errForeign()
	}
	if err != nil {
		return errStorage("kv.Open", "cannot read the database in "+m.dir, err)
	}
	defer closer.Close() //nolint:errcheck // a reference to memory
	last, err := parseMeta(raw)
	if err != nil {
		return err
	}
	w := newWriter(m.db, last, m.rowBytes)
	w.period = m.period
	if err := w.origins.load(m.db); err != nil {
		return errStorage("kv.Open", "cannot read the origins in "+m.dir, err)
	}
	if err := w.terms.load(m.db); err != nil {
		return errStorage("kv.Open", "cannot read the terms in "+m.dir, err)
	}
	if err := w.loadHistories(); err != nil {
		return errStorage("kv.Open", "cannot read the histories in "+m.dir, err)
	}
	m.writer = w
	m.era.Store(uint64(firstEra(last.tables())))
	m.publish()
	return nil
}

// publish makes the writer's state visible to readers. It does not wake calls of Wait.
func (m *Machine) publish() {
	w := m.writer
	m.state.Store(&state{
		meta: w.meta, origins: len(w.origins.byNumber), originDue: w.origins.due(), dueFloor: w.dueFloor,
		terms: w.terms, historyDue: w.histories.nextDueHint(), histories: len(w.histories.all),
		historyBytes: w.histories.size,
	})
}

// Applied returns the index of the last applied entry.
func (m *Machine) Applied() uint64 { return m.state.Load().applied }

// Visible returns the highest index of an entry that readers may have seen. It is above Applied only while entries are
// being applied.
func (m *Machine) Visible() uint64 { return max(m.visible.Load(), m.Applied()) }

// Clock returns cluster time as of the last applied entry, in Unix milliseconds.
func (m *Machine) Clock() uint64 { return m.state.Load().clock }

// Level returns the highest format version of log entries that the group may use. It never decreases.
func (m *Machine) Level() uint8 {
	return uint8(m.state.Load().level) //nolint:gosec // a KindFormat carries no more
}

// Hash returns the rolling hash of all applied entries, and the index of the last one. Two correct replicas have the
// same hash at the same index.
func (m *Machine) Hash() (index, hash uint64) {
	s := m.state.Load()
	return s.applied, s.hash
}

// Close waits for running calls and closes the database. It does not flush, because the Raft log still has the
// entries since the last Flush. If Pebble has failed permanently (see Options.Fatal), Close returns an error at
// once, and the directory stays locked until the process ends. Close is idempotent.
func (m *Machine) Close() error {
	m.closing.Do(func() {
		m.gate.close()
		m.closed = m.close()
	})
	return m.closed
}

func (m *Machine) close() error {
	done := make(chan error, 1)
	go func() {
		<-m.gate.drained
		m.exports.close()
		err := m.db.Close()
		if m.lock != nil {
			err = errors.Join(err, m.lock.Close())
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return errStorage("kv.Close", "closing the database in "+m.dir, err)
		}
		return nil
	case <-m.health.stuck:
		return fault.Wrap(m.health.readable(), "kv.Close", "storage gave up and the process must end")
	}
}

// use checks that the database can be read, and enters the gate. If it returns nil, the caller must call gate.leave
// after the last access to the database. The parameter op names the caller in errors.
func (m *Machine) use(op string) error {
	if !m.gate.enter() {
		return errClosed(op)
	}
	if err := m.health.readable(); err != nil {
		m.gate.leave()
		return err
	}
	return nil
}
