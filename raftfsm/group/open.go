package group

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
	"github.com/quorate/quorate/raftfsm/transport"
)

// disk holds the parts of a group that have files: terms and votes, log, snapshots, database and floor.
type disk struct {
	stable *raftlog.Votes
	logs   *raftlog.Store
	snaps  *snapshot.Store
	fsm    *snapshot.FSM
	pace   *raftlog.DiskSpeed
	floors *raftlog.FloorFile
	role   *role
	seen   transport.SeenTable // what this server has seen of other servers
	opened transport.Claim     // the term, vote and log that this server had when the group was opened
}

// openDisk opens or creates the directory of a group, and checks that its files belong together.
func openDisk(o Options, obs *groupMetrics, clk *clock) (d *disk, err error) {
	if err := o.volume.MkdirAll(o.Dir); err != nil {
		return nil, raftlog.DiskError(err, o.Dir)
	}
	d = &disk{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	man, err := snapshot.LoadManifest(o.volume, o.Dir)
	if err == nil && man == nil && o.MustExist {
		err = raftlog.CorruptFile(filepath.Join(o.Dir, snapshot.ManifestName),
			"it is missing, and so is everything this group held")
	}
	if err != nil {
		return d, err
	}
	floor, err := raftlog.LoadFloor(o.volume, o.Dir)
	if err != nil {
		return d, err
	}
	if man == nil && floor != nil {
		return d, raftlog.LostData(filepath.Join(o.Dir, snapshot.ManifestName), "is missing")
	}
	o.MustExist = o.MustExist || floor != nil
	if err := d.openLogs(o, obs, man); err != nil {
		return d, err
	}
	if man == nil {
		man = snapshot.FirstManifest()
	}
	if err := d.compare(o, man, floor); err != nil {
		return d, err
	}
	if err := d.openMachine(o, obs, clk, man); err != nil {
		return d, err
	}
	if err := d.check(o); err != nil {
		return d, err
	}
	return d, d.floors.Write()
}

// syncNew makes the names of new files and directories durable, because neither log engine does so. It syncs dir, its
// parent (the directory of all groups), and the parent of that (the data directory).
func syncNew(v raftlog.Volume, dir string) error {
	return errors.Join(v.SyncDir(dir), v.SyncDir(filepath.Dir(dir)), v.SyncDir(filepath.Dir(filepath.Dir(dir))))
}

// openLogs opens the file of terms and votes, and the log. man is nil if the group has no manifest yet.
func (d *disk) openLogs(o Options, obs *groupMetrics, man *snapshot.Manifest) error {
	path := filepath.Join(o.Dir, raftlog.StableName)
	if man == nil {
		// The manifest is made durable first, so a group without a manifest is incomplete and holds nothing.
		if o.volume.Exists(path) {
			return raftlog.CorruptFile(filepath.Join(o.Dir, snapshot.ManifestName),
				"it is missing, but the group's other files are there")
		}
		if err := snapshot.Create(o.volume, o.Dir, machineOptions(o, ""), process{o}); err != nil {
			return err
		}
	}
	if err := o.volume.OtherLog(o.Dir, o.Engine); err != nil {
		return err
	}
	hadStable, err := o.volume.Holds(path)
	if err != nil {
		return err
	}
	hadLog, err := o.volume.Holds(filepath.Join(o.Dir, o.Engine.FileName()))
	if err != nil {
		return err
	}
	switch {
	case o.MustExist && !hadStable:
		return raftlog.LostData(path, "is missing or empty, and with it the terms and votes of this server")
	case o.MustExist && !hadLog:
		return raftlog.LostData(filepath.Join(o.Dir, o.Engine.FileName()),
			"is missing or empty, and with it what this server acknowledged")
	}
	s, err := o.volume.Stable(path)
	if err != nil {
		return raftlog.DiskError(err, path)
	}
	engine, err := o.volume.Log(o.Dir, o.Engine, o.Logger)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	d.pace, d.role = &raftlog.DiskSpeed{Bound: o.Timing.SlowAppend}, &role{self: o.ServerID, disk: d,
		advanced: make(chan struct{}, 1)}
	d.logs = raftlog.NewStore(engine, o.ServerID, o.Level, d.role, &logEvents{o: o, obs: obs, pace: d.pace}, process{o})
	d.stable = raftlog.NewVotes(s, d.logs, process{o})
	d.floors = raftlog.NewFloorFile(o.volume, o.Dir, d.logs, floorSources{o, d}, process{o})
	if !hadStable || !hadLog {
		if err := syncNew(o.volume, o.Dir); err != nil {
			return raftlog.DiskError(err, o.Dir)
		}
	}
	return d.whole(o, hadStable, hadLog)
}

// whole returns an error if exactly one of two files was lost: the log, or the file of terms and votes. A server that
// has lost its votes could vote twice in a term. A server that has lost its log could lack entries that it has
// acknowledged. hadStable and hadLog report whether the file of votes and the log had contents before they were opened.
// An interrupted creation of the group is no error.
func (d *disk) whole(o Options, hadStable, hadLog bool) error {
	_, last, err := d.logs.Ends()
	if err != nil {
		return raftlog.DiskError(err, o.Dir)
	}
	_, err = d.stable.GetUint64([]byte(raftlog.KeyCurrentTerm))
	switch {
	case !hadStable && last > 0:
		return raftlog.LostData(filepath.Join(o.Dir, raftlog.StableName),
			"is missing or empty, but the log has entries")
	case !hadLog && err == nil:
		return raftlog.LostData(filepath.Join(o.Dir, o.Engine.FileName()),
			"is missing or empty, but the group has had a term")
	}
	return nil
}

func machineOptions(o Options, dir string) kv.Options {
	failed := o.databaseFailed
	if failed == nil {
		failed = o.Fatal
	}
	return kv.Options{Dir: dir, FS: o.volume.Database(), Cache: o.Cache, MemTable: o.MemTable, Logger: o.Logger,
		Fatal: failed, Backoff: backoff, MarkPeriod: integrity.MarkPeriod(o.Timing.Compare), Newest: o.newest}
}

// backoff sleeps before the database retries a failed flush or compaction, for example on a full disk. After the n-th
// consecutive failure, it sleeps for n times 100 ms, but at most two seconds.
func backoff(failures int) {
	time.Sleep(min(time.Duration(failures)*100*time.Millisecond, 2*time.Second))
}

// openMachine opens the database that the manifest names. It removes all other databases and all checkpoints.
func (d *disk) openMachine(o Options, obs *groupMetrics, clk *clock, man *snapshot.Manifest) error {
	d.snaps = snapshot.NewStore(snapshot.Config{
		Group: o.ID, Dir: o.Dir, Volume: o.volume, Logger: o.Logger, Database: machineOptions(o, ""),
		Process: process{o}, Log: d.logs, Floor: d.floors,
	}, man)
	if err := d.snaps.Sweep(); err != nil {
		return raftlog.DiskError(err, o.Dir)
	}
	m, err := d.snaps.OpenDatabase(d.snaps.Path(man.Database))
	if err != nil {
		return err
	}
	d.fsm = snapshot.NewFSM(d.snaps, m, man.Doubt, &machineEvents{clock: clk, obs: obs, role: d.role,
		locks: o.Locks, due: o.Due, topics: o.Topics, flows: o.Workflows})
	clk.observe(m.Clock())
	return nil
}

// damagedEntry adds the name of the damaged log file to a fault.Corrupt error. This is the file that contains the entry
// with the given index. Other errors are returned unchanged.
func damagedEntry(o Options, index uint64, err error) error {
	var e *fault.Error
	if errors.As(err, &e) && e.Code == fault.Corrupt {
		return raftlog.CorruptFile(raftlog.FileOf(o.Dir, o.Engine, index), e.Msg)
	}
	return err
}

// check verifies that log, snapshot and database belong together.
func (d *disk) check(o Options) error {
	snap := d.snaps.Info()
	if err := d.logs.Align(snap.Index, snap.Term); err != nil {
		return damagedEntry(o, snap.Index, err)
	}
	if at, err := d.logs.Scan(snap.Index); err != nil {
		return damagedEntry(o, at, err)
	}
	// A received database may be ahead of the snapshot it came with, and so ahead of the log.
	applied, top := d.fsm.Machine().Applied(), max(d.logs.Last(), snap.Index, snap.Applied)
	if applied < snap.Applied {
		return mismatch(o, "the database holds entries up to %d, its snapshot says %d", applied, snap.Applied)
	}
	term, err := d.stable.CurrentTerm()
	if err != nil {
		return raftlog.DiskError(err, o.Dir)
	}
	if err := raftlog.CheckTerm(o.Dir, term, d.fsm.Machine().Stats().Term); err != nil {
		return err
	}
	if applied > top {
		return mismatch(o, "the database holds entries up to %d, the log ends at %d", applied, top)
	}
	d.logs.Applied(applied)
	return nil
}

func mismatch(o Options, format string, a ...any) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.Open", Key: o.Dir,
		Msg:  fmt.Sprintf("the parts of %s do not belong together: ", o.Dir) + fmt.Sprintf(format, a...),
		Hint: "the files in the directory are of different times; " + raftlog.RejoinHint}
}

// close closes all parts. Raft must have shut down.
func (d *disk) close() error {
	var errs []error
	if d.snaps != nil {
		errs = append(errs, d.snaps.Close())
	}
	if d.fsm != nil {
		errs = append(errs, d.fsm.Machine().Close())
	}
	if d.logs != nil {
		errs = append(errs, d.logs.Close())
	}
	if d.stable != nil {
		errs = append(errs, d.stable.Close())
	}
	return errors.Join(errs...)
}

// bootstrap makes this server the only voter of a new group. It does nothing if the group already has a configuration.
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

// forgetHalfBootstrap undoes a bootstrap that was interrupted after it stored term 1. Otherwise raft would refuse to
// bootstrap again. A directory with only term 1 and no vote always comes from an interrupted bootstrap, because
// elections begin at term 2.
func (d *disk) forgetHalfBootstrap() error {
	term, err := d.stable.GetUint64([]byte(raftlog.KeyCurrentTerm))
	if err != nil || term != 1 || d.logs.Last() > 0 || d.snaps.Index() > 0 {
		return nil
	}
	if _, _, err := d.stable.Vote(); err == nil {
		return nil
	}
	return d.stable.SetUint64([]byte(raftlog.KeyCurrentTerm), 0)
}

// aloneWith returns the configuration of a group with one server.
func aloneWith(id raft.ServerID) raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: id, Address: raft.ServerAddress(id), Suffrage: raft.Voter}}}
}

// CheckFormats returns fault.Invalid with a file name if a newer version of Quorate wrote one of the files in o.Dir.
// It may return another error if a directory cannot be read. It changes nothing. No other process may use the
// directory during the call.
func CheckFormats(o Options) error {
	o = o.withDefaults()
	man, err := snapshot.LoadManifest(o.volume, o.Dir)
	if err != nil || man == nil {
		if fault.Is(err, fault.Invalid) {
			return err
		}
		return nil
	}
	if _, err := raftlog.LoadFloor(o.volume, o.Dir); fault.Is(err, fault.Invalid) {
		return err
	}
	if err := raftlog.CheckBoltFormat(filepath.Join(o.Dir, raftlog.StableName)); err != nil {
		return err
	}
	if err := raftlog.CheckBoltFormat(filepath.Join(o.Dir, raftlog.BoltName)); err != nil {
		return err
	}
	if err := raftlog.CheckWALFormat(filepath.Join(o.Dir, raftlog.WalName)); err != nil {
		return err
	}
	return kv.CheckFormat(machineOptions(o, filepath.Join(o.Dir, man.Database)))
}

// compare checks that no acknowledged entries or votes are missing. It compares the files of the group with the floor
// file f (see raftlog.Floor), which is nil if there is none. If nothing is missing, compare starts the regular updates
// of the floor file.
func (d *disk) compare(o Options, man *snapshot.Manifest, f *raftlog.Floor) error {
	h, err := raftlog.ReadStores(d.stable, d.logs)
	if err != nil {
		return err
	}
	h.Manifest = filepath.Join(o.Dir, snapshot.ManifestName)
	if snap := man.Snapshot; snap != nil {
		h.Snapshot, h.Applied = raftlog.Position{Term: snap.Term, Index: snap.Index}, snap.Applied
	}
	id := raftlog.Identity{Dir: o.Dir, Group: o.ID, Server: string(o.ServerID), Engine: o.Engine,
		Owner: o.Server.Owner()}
	if f == nil && o.MustExist {
		return raftlog.LostData(filepath.Join(o.Dir, raftlog.FloorName), "is missing")
	}
	if f != nil {
		if err := f.Check(id, h); err != nil {
			return err
		}
		d.seen.Load(f.Seen, f.Owner, id.Owner)
	}
	if err := raftlog.CheckTerm(o.Dir, h.Term, max(h.Last.Term, h.Snapshot.Term, h.VoteTerm)); err != nil {
		return err
	}
	d.opened = transport.Claim{Term: h.Term, Vote: h.VoteTerm, LogTerm: h.Last.Term,
		Last: max(h.Last.Index, h.Snapshot.Index)}
	d.floors.Begin(id, h, f, d.logs, d.stable)
	return nil
}

// tablesLimit is the maximum time that checkTables may take at a start.
const tablesLimit = 2 * time.Second

// databaseFailed handles a failure of the group's database (see kv.Options.Fatal). If the database is damaged and the
// group has another voter, this server waits for a copy of another server's state. Until then it serves no requests.
// In all other cases databaseFailed calls Options.Fatal.
func (g *Group) databaseFailed(err error) {
	select {
	case <-g.started:
		if fault.Is(err, fault.Corrupt) && g.integrity.Broken() {
			return
		}
	case <-g.closing.Done():
	}
	g.opts.Fatal(err)
}

// Unreadable must be called after a read of the machine has failed with fault.Corrupt. If the database is damaged and
// there is another voter, Unreadable returns true. This replica then serves no requests, and Trusted returns an error,
// until the replica has received a copy of another server's state. In all other cases Unreadable returns false.
func (g *Group) Unreadable() bool { return g.integrity.Broken() }

// checkTables verifies the table files of the database at the start of a server that is the only voter. Such a server
// cannot get a copy of the database from another voter. After tablesLimit, checkTables stops. Pebble verifies the
// remaining tables when it reads them.
func (g *Group) checkTables() error {
	start := time.Now()
	done, err := g.Machine().CheckTables(func() bool { return time.Since(start) < tablesLimit })
	if err == nil && !done {
		g.opts.Logger.Info("not every table of the database was verified at the start; each is verified when it is "+
			"read", "group", g.opts.ID, "after", time.Since(start).Round(time.Millisecond))
	}
	return err
}
