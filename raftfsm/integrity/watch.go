// Package integrity compares the state of this server with the states of the other servers of its group. If the state
// of this server is wrong, the package replaces it with a copy of another server's state.
//
// The package owns no files: package snapshot manages the databases.
//
// The caller starts Watch.SupplyStates in a goroutine. A comparison starts further goroutines, which end before the
// comparison returns. Receiving a state also starts a goroutine, which may read from the network until the connection
// ends.
package integrity

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Raft gives a Watch access to its group and to Raft. A Watch uses it only while Raft runs.
type Raft interface {
	// Servers returns the servers of the newest configuration.
	Servers() []raft.Server
	// IsVoter reports whether this server is a voter.
	IsVoter() bool
	// IsLeader reports whether Raft is in the leader state here.
	IsLeader() bool
	// Leading reports whether this server leads and has applied an entry of its term.
	Leading() bool
	// Time returns the leader's cluster time, in milliseconds.
	Time() uint64
	// CommitIndex returns the newest index known to be committed.
	CommitIndex() uint64
	// Tick commits an entry that only advances cluster time.
	Tick(ctx context.Context) error
	// HandOver transfers leadership to a voter.
	HandOver(to raft.ServerID) error
}

// Events receives the results of comparisons.
type Events interface {
	// Doubted reports that this replica has stopped serving because of a doubt.
	Doubted(cause snapshot.Cause)
	// Compared reports a comparison, and whether a majority has the state of this server.
	Compared(same bool)
	// Verified reports a verification of all records: ok, wrong or failed.
	Verified(outcome string)
	// Reinstalled reports an attempt to install the state of another server.
	Reinstalled(ok bool)
	// Changed reports that this replica serves again, or no longer serves.
	Changed()
}

// Sender sends the state of this server to another server.
type Sender interface {
	// SendState sends a state and reports whether it was accepted.
	SendState(to raft.ServerID, r *raft.InstallSnapshotRequest, data io.Reader) (taken bool, err error)
}

// Config configures a Watch.
type Config struct {
	Group     uint32 // for logs
	Self      raft.ServerID
	Every     time.Duration // cluster time between two comparisons
	ReadRound time.Duration // time limit of a query to other servers
	Closing   context.Context
	Logger    *slog.Logger
	Replicas  Replicas // nil = states are not compared

	Volume    raftlog.Volume
	Log       snapshot.Reader
	Disk      *raftlog.DiskSpeed
	Snapshots *snapshot.Store
	FSM       *snapshot.FSM

	Raft   Raft
	Events Events
	Sender Sender
}

// Watch compares the state of one replica with the states of other servers, and replaces a wrong state. Only one
// goroutine may call Round. All other methods are safe for concurrent use.
type Watch struct {
	Config

	comparing    comparing         // used by Round only
	reinstalling atomic.Bool       // a state of another server is being installed
	expected     expected          // the transfer for which this server waits
	supply       chan StateRequest // capacity 1: the request of a server that needs the state of this server
}

// New creates the Watch of a replica.
func New(c Config) *Watch { return &Watch{Config: c, supply: make(chan StateRequest, 1)} }

// Round compares the state of this server with the states of the other servers, and replaces a wrong state by a
// copy. A leader with a wrong state first transfers leadership to another server.
func (w *Watch) Round() {
	w.markDue()
	w.compare()
	w.standDown()
	w.reinstall()
}

func errClosing() error {
	return fault.New(fault.Unavailable, "group.integrity", "this node is shutting down")
}
