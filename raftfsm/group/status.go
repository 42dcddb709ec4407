package group

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Status describes a group for operators and metrics. It is not a consistent snapshot: the fields are read one after
// the other.
type Status struct {
	ID            uint32
	State         string // leader, follower, candidate, shutdown
	Leader        raft.ServerID
	Term          uint64
	CommitIndex   uint64
	AppliedIndex  uint64 // every entry up to this index is applied; raft's own applied index may be higher
	LastIndex     uint64
	SnapshotIndex uint64
	LogBytes      uint64 // bytes appended to the log since the last snapshot, accurate to 256 KiB
	Servers       []raft.Server
	CaughtUp      bool
	Doubt         *snapshot.Doubt // why this replica serves no requests; nil = it serves
	Damaged       bool            // the last verification found damaged records
	SlowDisk      bool            // log writes on this server are slow (see raftlog.DiskSpeed)
	Machine       kv.Stats
}

// Status returns the current status of the group.
func (g *Group) Status() Status {
	snap, commit, applied := g.disk.snaps.Index(), g.raft.CommitIndex(), g.Machine().Applied()
	if applied >= g.disk.logs.LastVisible(commit, g.disk.fsm.Floor()) {
		applied = max(applied, commit) // the remaining entries are raft's own, which never reach the machine
	}
	_, slow := g.disk.pace.State()
	return Status{
		ID: g.opts.ID, State: stateName(g.raft.State()), Leader: g.Leader(), Term: g.raft.CurrentTerm(),
		CommitIndex: commit, AppliedIndex: applied, LastIndex: g.LastIndex(), SnapshotIndex: snap,
		LogBytes: g.disk.logs.BytesSince(snap + 1), Servers: g.raft.GetConfiguration().Configuration().Servers,
		CaughtUp: g.CaughtUp(), Doubt: g.Doubt(), Damaged: g.disk.fsm.Damaged.Load(), SlowDisk: slow,
		Machine: g.Machine().Stats(),
	}
}

func stateName(s raft.RaftState) string {
	switch s {
	case raft.Leader:
		return "leader"
	case raft.Candidate:
		return "candidate"
	case raft.Shutdown:
		return "shutdown"
	default:
		return "follower"
	}
}

// Voters counts the voters of the latest configuration.
func (s *Status) Voters() int {
	n := 0
	for _, v := range s.Servers {
		if v.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// Retire stops Raft for this group until the group is opened again. The server then follows no leader, does not vote
// and starts no election. The files stay open until Close, so Status still works. Retire is idempotent.
func (g *Group) Retire() error { return g.raft.Shutdown().Error() }

// Committed returns the newest log index that this server knows to be committed.
func (g *Group) Committed() uint64 { return g.raft.CommitIndex() }

// Doubt returns why the state of this server is not trusted; nil if it is trusted.
func (g *Group) Doubt() *snapshot.Doubt { return g.disk.fsm.Doubt() }

// Trusted returns nil if this server trusts its local state, and otherwise an error with the reason. Call it after a
// read, and then check that Machine still returns the machine that was read. A different machine means that the
// state was replaced during the read.
func (g *Group) Trusted() error {
	d := g.Doubt()
	if d == nil {
		return nil
	}
	hint := "other servers answer meanwhile; the server recovers by itself, see 'quorate status'"
	if d.Cause == snapshot.Split {
		hint = "bring all voters up; see 'a partition is split' in docs/troubleshooting.md"
	}
	return &fault.Error{Code: fault.Unavailable, Op: "group.Trusted", Hint: hint,
		Msg: fmt.Sprintf("the replica of group %d on this server has taken itself out: %s", g.opts.ID, d.Describe())}
}

// Compare compares the state of all servers of the group. It repairs nothing. It returns fault.NotLeader if this
// server does not lead.
func (g *Group) Compare(ctx context.Context) (integrity.Comparison, error) {
	if !g.Leading() {
		return integrity.Comparison{}, errNotLeader("group.Compare")
	}
	return g.integrity.Compare(ctx)
}

// AnswerCompare returns a report about the state of this server at the given log index. It answers another server,
// which compares its own state with the report.
func (g *Group) AnswerCompare(index uint64) integrity.Report { return g.integrity.AnswerCompare(index) }

// AnswerState accepts another server's request for a copy of this server's state. A background goroutine sends one
// copy at a time, and one further request can wait. The errors are those of integrity.Watch.AnswerState.
func (g *Group) AnswerState(ask integrity.StateRequest) error { return g.integrity.AnswerState(ask) }

// Recall handles a call of transport.Witnesses.Recall by the given server. now is the report that the call contains.
// Recall records this report, and returns what this server had recorded about the given server before. It also queries
// the given server in turn (see Meet).
func (g *Group) Recall(server raft.ServerID, now raftlog.Seen) raftlog.Seen {
	g.witness.Meet(server)
	return g.witness.Note(server, now)
}

// SeenOf returns what this server has recorded about another server: its term, vote, log and commit index.
func (g *Group) SeenOf(server string) raftlog.Seen {
	return g.witness.Note(raft.ServerID(server), raftlog.Seen{})
}

// Meet queries the given server for what it has recorded about this server. The query runs in the background, and is
// repeated until it is answered. If the given server has already answered such a query, Meet does nothing. Use Meet for
// servers that may be missing from the local configuration, because the local data may be an old copy.
func (g *Group) Meet(server raft.ServerID) { g.witness.Meet(server) }
