package peercalls

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/records"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// Peers makes calls to the other servers of the cluster. Call is for methods that answer soon. Wait is for methods
// whose handlers may wait for a long time; it never delays Call. Both return soon after ctx has ended. The error of a
// failed call is that of the called server, or one of these:
//
//   - fault.Unavailable if the call certainly did not arrive.
//   - fault.Timeout if ctx ended before the call was sent.
//   - fault.Indeterminate if the call may have arrived.
type Peers interface {
	Call(ctx context.Context, server, method string, payload []byte) ([]byte, error)
	Wait(ctx context.Context, server, method string, payload []byte) ([]byte, error)
}

// Methods of the calls between servers. Host.Serve in package raftfsm answers these calls. The names and the message
// formats are part of the protocol.
const (
	MethodPropose   = "raft.propose"    // requests for the leader's log
	MethodRead      = "raft.read"       // a read for a node without replicas
	MethodRoute     = "raft.route"      // the leaders known to a server, and the groups it can read
	MethodReadIndex = "raft.read-index" // a read index of the leader
	MethodConfirm   = "raft.confirm"    // whether a term is still the newest known
	MethodProgress  = "raft.progress"   // the applied index and the last index of the log
	MethodCompare   = "raft.compare"    // the digest of a server's state at an index, and the state of its disk
	MethodState     = "raft.state"      // a request for the server's whole state
	MethodWatch     = "raft.watch"      // the history of a prefix, for a node without replicas
	MethodLock      = locks.Method      // ends a lock, or reads how long it is still valid
	MethodActor     = actors.Method     // the directory of actors
	MethodDue       = due.Method        // puts, removes or runs due work
	MethodTopic     = topics.Method     // changes topics, and receives outcomes of their messages
	MethodWorkflow  = workflows.Method  // runs workflows
	MethodRecall    = "raft.recall"     // what the server has seen of the caller in earlier incarnations
	MethodLost      = "raft.lost"       // whether the server has lost contact with a leader
)

// Methods of calls that wait at the server, for example for a message. They are separate from the methods that end such
// a wait. A server limits the calls of each method, so waiting calls cannot keep out the call for which they wait.
const (
	MethodLockWait     = locks.MethodWait     // waits for a lock
	MethodTopicWait    = topics.MethodWait    // waits for messages of topics
	MethodWorkflowWait = workflows.MethodWait // waits for work of workflows, or for the status of one
	MethodWatchWait    = "raft.watch-wait"    // waits for changes of the history of a prefix
)

// concurrency is how many calls of one method a server handles at a time for each connection. Further calls wait.
const concurrency = 256

// Concurrency returns how many calls of a method a server handles at a time for each connection. Further calls wait.
//
// A method whose calls wait at the server has a higher limit: the number of such calls that one node may have in flight
// to one server (peer.Limits.InFlight). The handler of each such call therefore starts at once.
func Concurrency(method string) int {
	if waits(method) {
		return 1024
	}
	return concurrency
}

// MaxRequest returns the maximum size in bytes of a request to a method. It returns 0 if only the general limit of the
// peer port applies.
func MaxRequest(method string) int {
	if waits(method) {
		return 1 << 20
	}
	return 0
}

// waits reports whether the calls of a method may wait at the server for a long time.
func waits(method string) bool {
	switch method {
	case MethodLockWait, MethodTopicWait, MethodWorkflowWait, MethodWatchWait:
		return true
	}
	return false
}

// Methods returns the names of all calls that raftfsm.Host.Serve answers.
func Methods() []string {
	return []string{MethodPropose, MethodRead, MethodRoute, MethodReadIndex, MethodConfirm, MethodProgress,
		MethodCompare, MethodState, MethodRecall, MethodWatch, MethodWatchWait, MethodLock, MethodLockWait,
		MethodActor, MethodDue, MethodTopic, MethodTopicWait, MethodWorkflow, MethodWorkflowWait, MethodLost}
}

// Observer counts the calls to other servers.
type Observer interface {
	// Forwarded is called after a call of a kind, with its error.
	Forwarded(kind string, err error)
	// ForwardedBatch is called with the number of writes of one call.
	ForwardedBatch(writes int)
}

// Kinds of calls, for an Observer.
const (
	ForwardPropose   = "propose"
	ForwardRead      = "read"
	ForwardReadIndex = "read_index"
	ForwardLock      = "lock"
	ForwardDue       = "due"
	ForwardActor     = "actor"
	ForwardTopic     = "topic"
	ForwardWorkflow  = "workflow"
)

// Leaders knows the leader of each group.
type Leaders interface {
	// Leader returns the known leader of a group; empty = none is known.
	Leader(gid uint32) raft.ServerID
}

// Gossip knows which servers are alive.
type Gossip interface {
	LiveServers() []string
}

// ErrFrame returns the error for a message of the given method that cannot be decoded.
func ErrFrame(method string) error { return records.Truncated(method) }
