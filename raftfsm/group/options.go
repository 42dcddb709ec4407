package group

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/transport"
)

// Options configure a group. Dir, ServerID, Transport, Logger, Metrics and Fatal are required.
type Options struct {
	ID        uint32        // partition number
	Dir       string        // directory of this group only
	ServerID  raft.ServerID // persistent; also used as the raft address, so that votes name servers and not addresses
	Transport raft.Transport
	Confirmer Confirmer          // confirms terms with other voters; may be nil while there are none
	Contacts  Contacts           // asks others about a lost leader; nil = elections wait for Timing.Heartbeat
	Replicas  integrity.Replicas // queries the state of other servers; nil = states are not compared
	Engine    raftlog.Engine     // log engine; default raftlog.BoltDB
	Bootstrap bool               // make this server the only voter if the group is new
	MustExist bool               // return fault.Corrupt if Dir contains no group
	// Server is the server that runs the group. nil = the group belongs to no cluster, and all servers run this
	// build.
	Server Server
	// Witnesses queries other servers about what they have seen of this server. nil = no queries.
	Witnesses transport.Witnesses

	Cache    *pebble.Cache // shared by the groups of a process; nil = the group creates its own
	MemTable uint64        // size of the memtable of the database, in bytes; 0 = the default of package kv
	// Compacting is a channel of capacity 1, which the groups of a server share as a lock. A group holds the lock
	// while it compacts its database to free space. nil = the group creates its own.
	Compacting chan struct{}

	Timing Timing
	Bounds Bounds

	Logger  *slog.Logger
	Metrics *Metrics
	// Fatal receives an error after which this replica cannot be trusted: a failed log write, an entry with a wrong
	// checksum, a damaged database. Fatal should end the process, because the group does not stop itself. Any
	// goroutine may call Fatal.
	Fatal func(error)
	// Now returns the current time; nil = time.Now. Open reads the wall clock from the result. After Open, the group
	// uses only the monotonic clock in the results.
	Now func() time.Time
	// Locks ends expired locks, and gives free locks to waiting callers, while this server leads. nil = there are no
	// locks.
	Locks RecordWatcher
	// Due hands out due work while this server leads. nil = there is none.
	Due RecordWatcher
	// Topics delivers messages of topics while this server leads. nil = there are none.
	Topics RecordWatcher
	// Workflows runs workflows while this server leads. nil = there are none.
	Workflows RecordWatcher
	Level     uint8 // highest version of log entries that Server.Raise has recorded; 0 = command.First
	// Step is called before and after each named step of disk work, for crash tests. nil = not called.
	Step func(step string)

	// databaseFailed receives a failure of the database; nil = Fatal
	databaseFailed func(error)
	// without disables guards before raft starts, for tests that show why a guard is needed.
	without func(*Group, *raft.Config)
	// tamper alters the entries that the machine of this server applies, for tests of a wrong state.
	tamper func([]kv.Entry)
	// volume is the file system, for simulations. nil = the file system of the operating system.
	volume raftlog.Volume
	// newest is the newest version of log entries that this build understands. Tests set it to simulate other builds.
	// 0 = command.Version.
	newest uint8
}

// Server is the server that runs a group. Its methods may be called from any goroutine.
type Server interface {
	// Owner returns the cluster to which the group belongs, according to the durable identity of the server. It
	// returns the zero Owner if the server belongs to no cluster yet.
	Owner() raftlog.Owner
	// NewLeader receives the id of a new leader as soon as this server knows that leader. A goroutine of raft calls
	// NewLeader, so it must not block.
	NewLeader(leader raft.ServerID)
	// Abstain reports whether this server should leave elections to others for a while.
	Abstain() bool
	// Newest returns the highest version of log entries that a server can read. The result known is false if the
	// version is unknown at present. It must not block.
	Newest(server raft.ServerID) (version uint8, known bool)
	// DiskLow reports whether the disk of this server is nearly full.
	DiskLow() bool
	// FreeDisk returns the free bytes on the disk of this server, as last measured; 0 = unknown.
	FreeDisk() uint64
	// Wrote reports that bytes were written to the log. It must not block.
	Wrote(bytes int)
	// Raise records durably that the log may contain entries of the given version, which is above Options.Level. It is
	// called before the first entry of that version is written to this disk.
	Raise(version uint8) error
}

// NoServer implements Server for a group that runs alone. Embed it to implement only some methods.
type NoServer struct{}

// Owner returns no cluster.
func (NoServer) Owner() raftlog.Owner { return raftlog.Owner{} }

// NewLeader does nothing.
func (NoServer) NewLeader(raft.ServerID) {}

// Abstain returns false.
func (NoServer) Abstain() bool { return false }

// Newest returns the version of this build, and true.
func (NoServer) Newest(raft.ServerID) (version uint8, known bool) { return command.Version, true }

// DiskLow returns false.
func (NoServer) DiskLow() bool { return false }

// FreeDisk returns 0.
func (NoServer) FreeDisk() uint64 { return 0 }

// Wrote does nothing.
func (NoServer) Wrote(int) {}

// Raise records nothing.
func (NoServer) Raise(uint8) error { return nil }

// RecordWatcher handles the records in one internal store of the state machine while this server leads. For example,
// the watcher of locks ends expired locks.
type RecordWatcher interface {
	// Update reports that records have changed, or that this server has gained or lost leadership. It must not block.
	Update()
}

// noWatcher is the default of Options.Locks, Options.Due, Options.Topics and Options.Workflows.
type noWatcher struct{}

// Update does nothing.
func (noWatcher) Update() {}

// Timing holds the time limits of a group. Zero fields get defaults.
type Timing struct {
	Heartbeat time.Duration // time without contact before a follower starts an election; default 1 s
	Election  time.Duration // time a candidate waits for votes; default 1 s
	// time without contact before a follower asks the others whether the leader has ended; default 3/10 of Heartbeat
	Silent time.Duration
	// time without a quorum before the leader steps down; default Heartbeat. Reads do not depend on Lease
	Lease        time.Duration
	Announce     time.Duration // delay before a leader announces a commit index that no append has sent; default 5 ms
	Commit       time.Duration // an idle leader repeats its commit index after 1 to 2 times this; default 500 ms
	Stall        time.Duration // duration of a log write after which this server stops sending; default 2 s
	StallFatal   time.Duration // duration of a log write that ends the process; default 20 s
	ReadRound    time.Duration // time limit of one round of queries to other servers; default 2 s
	ExpiryEvery  time.Duration // interval at which the leader looks for expired keys; default 500 ms
	SnapshotPoll time.Duration // interval at which the size of the log is checked; default 1 s
	Reclaim      time.Duration // interval of the checks for disk space that can be freed; default 10 s
	Compare      time.Duration // cluster time between two state comparisons; default 10 s
	FirstVerify  time.Duration // delay after a start before stored records are verified; default 10 min
	Verify       time.Duration // interval of further verifications; default 24 h
	SlowAppend   time.Duration // median duration of log writes above which a disk is slow; default 200 ms
	SlowLook     time.Duration // window of this median; after ten slow windows in sequence a disk is slow; default 1 s
	FloorEvery   time.Duration // interval at which a changed floor (see raftlog.Floor) is written; default 10 s
	// interval of the reports to other servers about the term, vote and commit index of this server; default 5 s
	WitnessEvery time.Duration
	// minimum time between two transfers of leadership because of a slow disk; default 1 min
	HandOver time.Duration
}

// Bounds holds the size limits of a group. Zero fields get defaults.
type Bounds struct {
	// bytes of requests in one entry; default 1 MiB; a larger request gets an entry of its own
	EntryBytes       int
	EntryCount       int    // requests in one entry; default 1024
	Window           int    // entries in flight; default 2
	Queue            int    // requests waiting for an entry; default 16384
	QueueBytes       int    // bytes of requests waiting for an entry; default 64 MiB
	SnapshotLogBytes uint64 // log bytes since the last snapshot that trigger the next one; default 64 MiB
	SnapshotEntries  uint64 // log entries since the last snapshot that trigger the next one; default 131072
	TrailingBytes    uint64 // log bytes kept behind a snapshot for followers; default 32 MiB
	TrailingEntries  uint64 // number of log entries kept behind a snapshot; default 10240
	ExpireLimit      uint32 // maximum number of expired items that one entry removes; default 1000
}

func (o Options) withDefaults() Options {
	def(&o.Engine, raftlog.BoltDB)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.volume == nil {
		o.volume = raftlog.OSVolume{}
	}
	if o.Locks == nil {
		o.Locks = noWatcher{}
	}
	if o.Due == nil {
		o.Due = noWatcher{}
	}
	if o.Topics == nil {
		o.Topics = noWatcher{}
	}
	if o.Workflows == nil {
		o.Workflows = noWatcher{}
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if o.Server == nil {
		o.Server = NoServer{}
	}
	def(&o.newest, command.Version)
	def(&o.Level, command.First)
	if o.Compacting == nil {
		o.Compacting = make(chan struct{}, 1)
	}
	t, b := &o.Timing, &o.Bounds
	def(&t.Heartbeat, time.Second)
	def(&t.Election, time.Second)
	def(&t.Silent, 3*t.Heartbeat/10)
	def(&t.Lease, t.Heartbeat)
	def(&t.Announce, 5*time.Millisecond)
	def(&t.Commit, 500*time.Millisecond)
	def(&t.Stall, 2*time.Second)
	def(&t.StallFatal, 20*time.Second)
	def(&t.ReadRound, 2*time.Second)
	def(&t.ExpiryEvery, 500*time.Millisecond)
	def(&t.SnapshotPoll, time.Second)
	def(&t.Reclaim, 10*time.Second)
	def(&t.Compare, 10*time.Second)
	def(&t.FirstVerify, 10*time.Minute)
	def(&t.Verify, 24*time.Hour)
	def(&t.SlowAppend, 200*time.Millisecond)
	def(&t.SlowLook, time.Second)
	def(&t.HandOver, time.Minute)
	def(&t.FloorEvery, 10*time.Second)
	def(&t.WitnessEvery, 5*time.Second)
	def(&b.EntryBytes, 1<<20)
	def(&b.EntryCount, 1024)
	def(&b.Window, 2)
	def(&b.Queue, 16384)
	def(&b.QueueBytes, 64<<20)
	def(&b.SnapshotLogBytes, 64<<20)
	def(&b.SnapshotEntries, 131072)
	def(&b.TrailingBytes, 32<<20)
	def(&b.TrailingEntries, 10240)
	def(&b.ExpireLimit, 1000)
	return o
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o Options) validate() error {
	bad := func(format string, a ...any) error {
		return &fault.Error{Code: fault.Invalid, Op: "group.Open", Msg: fmt.Sprintf(format, a...)}
	}
	switch {
	case o.Dir == "" || o.ServerID == "" || o.Transport == nil || o.Logger == nil || o.Metrics == nil || o.Fatal == nil:
		return bad("group %d: Dir, ServerID, Transport, Logger, Metrics and Fatal are required", o.ID)
	case o.Engine != raftlog.BoltDB && o.Engine != raftlog.WAL:
		return bad("unknown log engine %q; known are %q and %q", o.Engine, raftlog.BoltDB, raftlog.WAL)
	case o.Timing.Lease > o.Timing.Heartbeat:
		return bad("the leader lease (%s) must not exceed the heartbeat time-out (%s)", o.Timing.Lease,
			o.Timing.Heartbeat)
	case o.Timing.Lease < 3*o.Timing.Heartbeat/10:
		// The interval of a leader's heartbeats is a tenth to a fifth of the time-out (hashicorp/raft#604).
		return bad("the leader lease (%s) must be at least three tenths of the heartbeat time-out (%s)", o.Timing.Lease,
			o.Timing.Heartbeat)
	}
	return nil
}
