package peercalls

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// LeaderClient makes calls to the leaders of groups. It is safe for concurrent use.
type LeaderClient struct {
	peers   Peers
	metrics Observer
	calls   *leaderCalls
	forward *forwarder
	waits   lockWaits
}

// NewLeaderClient returns a client that makes its calls through p and reports each call to m. It uses l to find out
// which server leads a group.
func NewLeaderClient(p Peers, m Observer, l Leaders) *LeaderClient {
	return leaderClientOf(p, m, newLeaderCalls(l))
}

func leaderClientOf(p Peers, m Observer, calls *leaderCalls) *LeaderClient {
	return &LeaderClient{peers: p, metrics: m, calls: calls, forward: newForwarder(p, m, calls),
		waits: lockWaits{calls: map[raft.ServerID]int{}}}
}

// Propose sends a proposal to a server. This must be the server that the node considers the leader of the group.
// hasValues is true if the request stores values.
func (c *LeaderClient) Propose(ctx context.Context, to raft.ServerID, gid uint32, data group.Encoded, ack group.Ack,
	hasValues bool) (group.Answer, error) {
	return c.forward.propose(ctx, laneKey{to: to, group: gid, ack: ack}, data, hasValues)
}

// ReadIndex requests a read index from a server. This must be the server that the node considers the leader of the
// group. ReadIndex also returns whether the log of that server contains the entry at pos (see leaderIndex in package
// raftfsm).
func (c *LeaderClient) ReadIndex(ctx context.Context, leader raft.ServerID, gid uint32,
	pos raftlog.Position) (group.ReadIndex, group.Holding, error) {
	b := AppendPosition(Message(gid), pos)
	ctx, done := c.calls.begin(ctx, gid, leader)
	defer done()
	out, err := c.peers.Call(ctx, string(leader), MethodReadIndex, b)
	err = endedBy(ctx, "raftfsm.forward", err)
	c.metrics.Forwarded(ForwardReadIndex, err)
	if err != nil {
		return group.ReadIndex{}, group.Unknown, err
	}
	r := NewFrame(out)
	ri := group.ReadIndex{Position: r.Position(), Now: r.Uvarint()}
	held := group.Holding(r.Uvarint())
	if r.Bad {
		return ri, group.Unknown, ErrFrame(MethodReadIndex)
	}
	return ri, held, nil
}

// Ask sends a call to a server. This must be the server that the node considers the leader of the group. For a call
// that waits for a lock, Ask returns fault.Overloaded if too many such calls of this node already wait at that server.
func (c *LeaderClient) Ask(ctx context.Context, to raft.ServerID, gid uint32, method string, payload []byte) ([]byte,
	error) {
	if method == MethodLockWait {
		if err := c.waits.begin(to); err != nil {
			return nil, err
		}
		defer c.waits.end(to)
	}
	ctx, done := c.calls.begin(ctx, gid, to)
	defer done()
	send := c.peers.Call
	if waits(method) {
		send = c.peers.Wait
	}
	out, err := send(ctx, string(to), method, payload)
	err = endedBy(ctx, "raftfsm.forward", err)
	kind := ForwardLock
	switch method {
	case actors.Method:
		kind = ForwardActor
	case due.Method:
		kind = ForwardDue
	case topics.Method, topics.MethodWait:
		kind = ForwardTopic
	case workflows.Method, workflows.MethodWait:
		kind = ForwardWorkflow
	}
	c.metrics.Forwarded(kind, err)
	return out, err
}

// Close ends the proposals in flight.
func (c *LeaderClient) Close() { c.forward.close() }

// NewLeader ends the calls for a group that were sent to a server other than its new leader.
func (c *LeaderClient) NewLeader(gid uint32, leader raft.ServerID) { c.calls.moved(gid, leader) }
