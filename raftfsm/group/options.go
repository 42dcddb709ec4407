package group

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// LogEngine names what keeps log entries.
type LogEngine string

// The engines. Terms and votes are kept by raft-boltdb with either.
const (
	BoltDB LogEngine = "boltdb" // raft-boltdb/v2: two fsyncs an append
	WAL    LogEngine = "wal"    // raft-wal: one fsync an append
)

// Options say how to open a group. ID, Dir, ServerID, Transport, Logger, Metrics and
// Fatal are required.
type Options struct {
	ID        uint32        // partition number
	Dir       string        // directory of this group alone
	ServerID  raft.ServerID // persistent; doubles as the raft address, so that votes name servers and not places
	Transport raft.Transport
	Confirmer Confirmer // asks other voters; may be nil while there are none
	Replicas  Replicas  // asks other servers about their state; nil = states are not compared
	Engine    LogEngine // default BoltDB
	Bootstrap bool      // make a group of this one server if Dir is empty
	MustExist bool      // refuse a Dir without a group as corrupt

	Cache    *pebble.Cache // shared by the groups of a process; nil = one of its own
	MemTable uint64        // bytes; 0 = the machine's default

	Timing Timing
	Bounds Bounds

	Logger  *slog.Logger
	Metrics *Metrics
	// Fatal is told of what makes this replica untrustworthy: a failed write of the log,
	// an entry that does not match its checksum, a damaged database. It should end the
	// process; the group does nothing more after it was called. Called from any goroutine.
	Fatal func(error)
	Now   func() time.Time // nil = time.Now. Its wall clock counts at Open only, then its monotonic one
	// NewLeader is told which server leads, as soon as this one knows; nil = nobody asks.
	// Called by raft: it must not block.
	NewLeader func(leader raft.ServerID)
	// Newest tells the highest version of log entries that a server understands; false if
	// that is not known now. nil = all servers run this build. It must not block.
	Newest func(server raft.ServerID) (version uint8, known bool)
	// Raise is told, before anything of it is on this disk, that the group holds entries of
	// a version above Level from now on; it makes that durable. nil = nobody keeps it.
	Raise func(version uint8) error
	Level uint8 // version that Raise made durable before; at least command.First
	// Step is called before and after each step of our own disk work, with its name. For
	// crash tests; nil = nothing.
	Step func(step string)

	// without takes guards away before raft starts, for tests that show what a guard is for.
	without func(*Group, *raft.Config)
	// tamper changes what this server's machine is given to apply, for tests that need a wrong one.
	tamper func([]kv.Entry)
	// volume is what the group stands on, in simulations; nil = the operating system's.
	volume volume
}

// Timing holds the group's time limits. Zero fields take defaults.
type Timing struct {
	Heartbeat    time.Duration // follower waits so long for its leader; default 1 s
	Election     time.Duration // candidate waits so long for votes; default 1 s
	Lease        time.Duration // leader steps down without a quorum for so long; default Heartbeat. Reads do not rest on it
	Commit       time.Duration // idle leader tells followers its commit index within 1-2x; default 10 ms
	Stall        time.Duration // log write in flight so long stops heartbeats; default 2 s
	StallFatal   time.Duration // and so long ends the process; default 20 s
	ReadRound    time.Duration // bound of one confirmation round; default 2 s
	ExpiryEvery  time.Duration // leader looks for due keys so often; default 500 ms
	SnapshotPoll time.Duration // how often the size of the log is looked at; default 1 s
	Compare      time.Duration // cluster time between two entries at which servers compare their states; default 10 s
	FirstVerify  time.Duration // after a start, stored records are compared with what was applied; default 10 min
	Verify       time.Duration // and again every so often; default 24 h
	SlowAppend   time.Duration // median time of log writes above which a disk is slow; default 200 ms
	SlowLook     time.Duration // how often that is looked at; ten times in a row make a disk slow; default 1 s
	HandOver     time.Duration // a leader whose disk is slow hands over at most so often; default 1 min
}

// Bounds hold the group's size limits. Zero fields take defaults.
type Bounds struct {
	EntryBytes       int    // requests gathered into one entry; default 1 MiB; a single larger request travels alone
	EntryCount       int    // requests gathered into one entry; default 1024
	Window           int    // entries on their way at a time; default 2
	Queue            int    // requests waiting for an entry; default 16384
	QueueBytes       int    // and their bytes; default 64 MiB
	SnapshotLogBytes uint64 // log bytes since the last snapshot that trigger one; default 64 MiB
	SnapshotEntries  uint64 // log entries since the last snapshot that trigger one; default 131072
	TrailingBytes    uint64 // log bytes kept behind a snapshot for followers; default 32 MiB
	TrailingEntries  uint64 // and entries; default 10240
	ExpireLimit      uint32 // due items removed by one entry; default 1000
}

func (o Options) withDefaults() Options {
	def(&o.Engine, BoltDB)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.volume == nil {
		o.volume = osVolume{}
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if o.NewLeader == nil {
		o.NewLeader = func(raft.ServerID) {}
	}
	t, b := &o.Timing, &o.Bounds
	def(&t.Heartbeat, time.Second)
	def(&t.Election, time.Second)
	def(&t.Lease, t.Heartbeat)
	def(&t.Commit, 10*time.Millisecond)
	def(&t.Stall, 2*time.Second)
	def(&t.StallFatal, 20*time.Second)
	def(&t.ReadRound, 2*time.Second)
	def(&t.ExpiryEvery, 500*time.Millisecond)
	def(&t.SnapshotPoll, time.Second)
	def(&t.Compare, 10*time.Second)
	def(&t.FirstVerify, 10*time.Minute)
	def(&t.Verify, 24*time.Hour)
	def(&t.SlowAppend, 200*time.Millisecond)
	def(&t.SlowLook, time.Second)
	def(&t.HandOver, time.Minute)
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
	case o.Engine != BoltDB && o.Engine != WAL:
		return bad("unknown log engine %q; known are %q and %q", o.Engine, BoltDB, WAL)
	case o.Timing.Lease > o.Timing.Heartbeat:
		return bad("the leader lease (%s) must not exceed the heartbeat time-out (%s)", o.Timing.Lease, o.Timing.Heartbeat)
	case o.Timing.Lease < 3*o.Timing.Heartbeat/10:
		// A leader sends heartbeats every tenth to fifth of the time-out (hashicorp/raft#604).
		return bad("the leader lease (%s) must be at least three tenths of the heartbeat time-out (%s)", o.Timing.Lease, o.Timing.Heartbeat)
	}
	return nil
}
