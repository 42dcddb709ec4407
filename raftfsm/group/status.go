package group

import (
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/kv"
)

// Status is a snapshot of a group for operators and metrics. Numbers are read one after
// the other, not at one instant.
type Status struct {
	ID            uint32
	State         string // leader, follower, candidate, shutdown
	Leader        raft.ServerID
	Term          uint64
	CommitIndex   uint64
	AppliedIndex  uint64 // the machine reflects every entry up to here (raft's own number runs ahead of it)
	LastIndex     uint64
	SnapshotIndex uint64
	LogBytes      uint64 // appended since the last snapshot, to within 256 KiB
	Servers       []raft.Server
	CaughtUp      bool
	Doubt         *Doubt // why this replica serves nothing; nil = it does
	Damaged       bool   // the last check found stored records that are not what was applied
	SlowDisk      bool   // log writes take long here
	Machine       kv.Stats
}

// Status describes the group now.
func (g *Group) Status() Status {
	snap, commit, applied := g.disk.snaps.index(), g.raft.CommitIndex(), g.Machine().Applied()
	if applied >= g.disk.logs.tail.lastVisible(commit, g.disk.fsm.floor.Load()) {
		applied = max(applied, commit) // what follows are raft's own entries, which the machine never sees
	}
	_, slow := g.disk.pace.state()
	return Status{
		ID: g.opts.ID, State: stateName(g.raft.State()), Leader: g.Leader(), Term: g.raft.CurrentTerm(),
		CommitIndex: commit, AppliedIndex: applied, LastIndex: g.LastIndex(), SnapshotIndex: snap,
		LogBytes: g.disk.logs.tail.since(snap + 1), Servers: g.raft.GetConfiguration().Configuration().Servers,
		CaughtUp: g.CaughtUp(), Doubt: g.Doubt(), Damaged: g.damaged.Load(), SlowDisk: slow, Machine: g.Machine().Stats(),
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
