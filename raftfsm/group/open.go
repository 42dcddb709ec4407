package group

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Files of a group beside the manifest and the databases.
const (
	stableName = "stable.db"
	boltName   = "log.db"
	walName    = "wal"
	firstDB    = databasePrefix + "000001"
)

// disk is what a group has open on disk.
type disk struct {
	stable *stable
	logs   *logs
	snaps  *snapshots
	fsm    *fsm
	pace   *pace
}

// openDisk opens or creates a group's directory and checks that its parts belong together.
func openDisk(o Options, obs *groupMetrics, clk *clock) (d *disk, err error) {
	if err := o.volume.mkdirAll(o.Dir); err != nil {
		return nil, diskError(err, o.Dir)
	}
	d = &disk{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	man, err := loadManifest(o.volume, o.Dir)
	if err == nil && man == nil && o.MustExist {
		err = corruptFile(filepath.Join(o.Dir, manifestName), "it is missing, and so is everything this group held")
	}
	if err != nil {
		return d, err
	}
	if err := d.openLogs(o, obs, man); err != nil {
		return d, err
	}
	if err := d.openMachine(o, obs, clk, man); err != nil {
		return d, err
	}
	return d, d.check(o)
}

// syncNew makes the names of what was made in dir, and of dir itself, survive a power
// cut: neither engine does. Two levels up are ours: the groups' directory and the node's.
func syncNew(v volume, dir string) error {
	return errors.Join(v.syncDir(dir), v.syncDir(filepath.Dir(dir)), v.syncDir(filepath.Dir(filepath.Dir(dir))))
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

// openLogs opens terms, votes and entries.
func (d *disk) openLogs(o Options, obs *groupMetrics, man *manifest) error {
	path := filepath.Join(o.Dir, stableName)
	if man == nil {
		// The manifest is the first thing made durable: a half-made group holds nothing.
		if o.volume.exists(path) {
			return corruptFile(filepath.Join(o.Dir, manifestName), "it is missing, but the group's other files are there")
		}
		if err := createFirst(o); err != nil {
			return err
		}
	}
	hadStable, hadLog := o.volume.exists(path), o.volume.exists(filepath.Join(o.Dir, o.Engine.file()))
	s, err := o.volume.stable(path)
	if err != nil {
		return diskError(err, path)
	}
	d.stable = &stable{store: s, fatal: o.Fatal, step: o.Step, first: func() error { return d.logs.unsynced.drain() }}
	engine, err := o.volume.log(o)
	if err != nil {
		return err
	}
	d.pace = &pace{bound: o.Timing.SlowAppend}
	appended := func(took time.Duration, entries, bytes int) {
		obs.appended(took, entries, bytes)
		d.pace.add(took)
	}
	d.logs = newLogs(engine, o.Fatal, appended, o.Step)
	d.logs.level, d.logs.raise = max(o.Level, command.First), o.Raise
	if !hadStable || !hadLog {
		if err := syncNew(o.volume, o.Dir); err != nil {
			return diskError(err, o.Dir)
		}
	}
	return d.whole(o, hadStable, hadLog)
}

// whole refuses a group that lost its terms and votes, or its log: it might vote twice in
// a term, or forget what it acknowledged. Files are made in the order manifest, terms,
// log, and entries come after terms, so an interrupted making is told from a loss.
func (d *disk) whole(o Options, hadStable, hadLog bool) error {
	last, err := d.logs.engine.LastIndex()
	if err != nil {
		return diskError(err, o.Dir)
	}
	_, err = d.stable.GetUint64([]byte("CurrentTerm"))
	switch {
	case o.MustExist && !hadStable:
		return corruptFile(filepath.Join(o.Dir, stableName), "it is missing, and with it the terms and votes of this server")
	case o.MustExist && !hadLog:
		return corruptFile(filepath.Join(o.Dir, o.Engine.file()), "it is missing, and with it what this server acknowledged")
	case !hadStable && last > 0:
		return corruptFile(filepath.Join(o.Dir, stableName), "it is missing, but the log has entries")
	case !hadLog && err == nil:
		return corruptFile(filepath.Join(o.Dir, o.Engine.file()), "it is missing, but the group has had a term")
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// file names what the engine makes in a group's directory.
func (e LogEngine) file() string {
	if e == WAL {
		return walName
	}
	return boltName
}

// createFirst makes the empty database and the manifest that names it.
func createFirst(o Options) error {
	if err := o.volume.removeAll(filepath.Join(o.Dir, firstDB)); err != nil {
		return diskError(err, o.Dir)
	}
	m, err := kv.Create(machineOptions(o, filepath.Join(o.Dir, firstDB)))
	if err != nil {
		return err
	}
	if err := m.Close(); err != nil {
		return err
	}
	if err := o.volume.syncDir(o.Dir); err != nil {
		return diskError(err, o.Dir)
	}
	o.Step("database-created")
	if err := storeManifest(o.volume, o.Dir, &manifest{Database: firstDB}, o.Step); err != nil {
		return diskError(err, o.Dir)
	}
	return nil
}

func machineOptions(o Options, dir string) kv.Options {
	return kv.Options{Dir: dir, FS: o.volume.database(), Cache: o.Cache, MemTable: o.MemTable, Logger: o.Logger, Fatal: o.Fatal, Backoff: backoff, MarkPeriod: markPeriod(o.Timing.Compare)}
}

// backoff slows the database down while its storage fails, for instance on a full disk.
func backoff(failures int) {
	time.Sleep(min(time.Duration(failures)*100*time.Millisecond, 2*time.Second))
}

// openEngine opens the log, refusing one that was made by the other engine.
func openEngine(o Options) (logStore, error) {
	mine, other := filepath.Join(o.Dir, o.Engine.file()), BoltDB
	if o.Engine == BoltDB {
		other = WAL
	}
	if path := filepath.Join(o.Dir, other.file()); exists(path) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "group.Open", Key: path,
			Msg:  fmt.Sprintf("the log in %s was made with --log-store %s", o.Dir, other),
			Hint: fmt.Sprintf("start with --log-store %s; to change it, let the node join again with an empty data directory", other)}
	}
	if o.Engine == BoltDB {
		s, err := raftboltdb.New(raftboltdb.Options{Path: mine, BoltOptions: boltOptions()})
		if err != nil {
			return nil, diskError(err, mine)
		}
		return s, nil
	}
	if err := os.MkdirAll(mine, 0o700); err != nil {
		return nil, diskError(err, mine)
	}
	s, err := openWAL(mine, o.Logger)
	if err != nil {
		return nil, diskError(err, mine)
	}
	return s, nil
}

// openMachine opens the live database and removes what no manifest names.
func (d *disk) openMachine(o Options, obs *groupMetrics, clk *clock, man *manifest) error {
	if man == nil {
		man = &manifest{Database: firstDB}
	}
	d.fsm = &fsm{tail: &d.logs.tail, clock: clk, metrics: obs, received: make(chan struct{}, 1), tamper: o.tamper}
	d.fsm.doubt.Store(man.Doubt)
	d.snaps = &snapshots{
		dir: o.Dir, volume: o.volume, logger: o.Logger, life: checkpointLife, current: *man, machine: d.fsm.machine, step: o.Step,
		open: func(dir string) (*kv.Machine, error) { return kv.Open(machineOptions(o, dir)) },
	}
	d.snaps.held = func(p Position) bool { term, known := d.logs.termAt(p.Index); return known && term == p.Term }
	d.snaps.raise = d.logs.raiseTo
	d.fsm.store = d.snaps
	if err := d.snaps.sweep(); err != nil {
		return diskError(err, o.Dir)
	}
	m, err := kv.Open(machineOptions(o, d.snaps.path(man.Database)))
	if err != nil {
		return err
	}
	if err := d.logs.raiseTo(m.Level()); err != nil { // of a directory that an earlier build kept
		return errors.Join(err, m.Close())
	}
	d.fsm.live.Store(m)
	d.fsm.floor.Store(d.snaps.index())
	clk.observe(m.Clock())
	return nil
}

// sweep removes leftovers of a crash and finds the next free number.
func (s *snapshots) sweep() error {
	entries, err := s.volume.list(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		var n uint64
		isDB := strings.HasPrefix(name, databasePrefix)
		if !isDB && !strings.HasPrefix(name, checkpointPrefix) {
			continue
		}
		if _, err := fmt.Sscanf(name[strings.IndexByte(name, '-')+1:], "%d", &n); err == nil {
			s.next = max(s.next, n)
		}
		if name == s.current.Database {
			continue
		}
		if err := s.volume.removeAll(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// check verifies that log, snapshot and database belong together.
func (d *disk) check(o Options) error {
	snap := d.snaps.current.Snapshot
	if snap == nil {
		snap = &snapshotInfo{}
	}
	if err := d.logs.align(snap.Index, snap.Term); err != nil {
		return err
	}
	if err := d.logs.scan(snap.Index); err != nil {
		return err
	}
	// A received database may be ahead of the snapshot it came with, and then of the log.
	applied, top := d.fsm.machine().Applied(), max(d.logs.last.Load(), snap.Index, snap.Applied)
	if applied < snap.Applied {
		return mismatch(o, "the database holds entries up to %d, its snapshot says %d", applied, snap.Applied)
	}
	if applied > top {
		return mismatch(o, "the database holds entries up to %d, the log ends at %d", applied, top)
	}
	d.logs.tail.settle(applied)
	return nil
}

func mismatch(o Options, format string, a ...any) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.Open", Key: o.Dir,
		Msg:  fmt.Sprintf("the parts of %s do not belong together: ", o.Dir) + fmt.Sprintf(format, a...),
		Hint: "the directory was put together from different times; restore it whole from a backup, or empty it to join again as a new server"}
}

// diskError explains the common failures of opening files.
func diskError(err error, path string) error {
	e := &fault.Error{Code: fault.Internal, Op: "group.Open", Key: path, Msg: "cannot open " + path, Err: err}
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		e.Code, e.Hint = fault.Unavailable, "another process uses this data directory; stop it, or choose another --data-dir"
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		e.Hint = "the disk is mounted read-only or this user may not write there"
	case errors.Is(err, syscall.ENOSPC):
		e.Hint = "the disk is full; free some space and start again, nothing acknowledged is lost"
	case errors.Is(err, bbolterrors.ErrVersionMismatch):
		e.Code, e.Hint = fault.Invalid, "the file has another format than the one this version understands, which is 2: run the version of quorate that wrote it, or a newer one; nothing was changed"
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum):
		e.Code, e.Hint = fault.Corrupt, "the file is damaged or foreign; restore the directory from a backup, or empty it to join again as a new server"
	}
	return e
}

// close closes what was opened, in reverse order. raft must have been shut down.
func (d *disk) close() error {
	var errs []error
	if d.snaps != nil {
		errs = append(errs, d.snaps.close())
	}
	if d.fsm != nil && d.fsm.machine() != nil {
		errs = append(errs, d.fsm.machine().Close())
	}
	if d.logs != nil {
		errs = append(errs, d.logs.Close())
	}
	if d.stable != nil {
		errs = append(errs, d.stable.Close())
	}
	return errors.Join(errs...)
}

// bootstrap makes this server the only voter of a new group, once.
func (d *disk) bootstrap(o Options, conf *raft.Config, trans raft.Transport) error {
	if err := d.forgetHalfBootstrap(); err != nil {
		return err
	}
	err := raft.BootstrapCluster(conf, d.logs, d.stable, d.snaps, trans, aloneWith(o.ServerID))
	if errors.Is(err, raft.ErrCantBootstrap) {
		return nil
	}
	return err
}

// forgetHalfBootstrap makes a bootstrap possible again that was cut off between its two
// writes: term 1 and the first entry. Raft takes a term for a group that exists. Term 1
// without a vote is nothing else: elections begin at term 2.
func (d *disk) forgetHalfBootstrap() error {
	term, err := d.stable.GetUint64([]byte("CurrentTerm"))
	if err != nil || term != 1 || d.logs.last.Load() > 0 || d.snaps.index() > 0 {
		return nil
	}
	if _, _, err := d.stable.vote(); err == nil {
		return nil
	}
	return d.stable.SetUint64([]byte("CurrentTerm"), 0)
}

// aloneWith is the configuration of a group of one server.
func aloneWith(id raft.ServerID) raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: id, Address: raft.ServerAddress(id), Suffrage: raft.Voter}}}
}
