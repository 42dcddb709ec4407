package raftfsm

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// leaderClient makes calls to the leaders of groups.
type leaderClient struct {
	peers   Peers
	metrics *Metrics
	calls   *leaderCalls
	forward *forwarder
}

func newLeaderClient(p Peers, m *Metrics, calls *leaderCalls) *leaderClient {
	return &leaderClient{peers: p, metrics: m, calls: calls, forward: newForwarder(p, m, calls)}
}

// propose sends a proposal to another server that this node considers the leader. values is true if the request stores
// values.
func (c *leaderClient) propose(ctx context.Context, to raft.ServerID, gid uint32, data group.Encoded, ack group.Ack,
	values bool) (group.Answer, error) {
	return c.forward.propose(ctx, laneKey{to: to, group: gid, ack: ack}, data, values)
}

// readIndex requests a read index from the server that this node believes to be the leader. The parameter to is the id
// of that server. The parameter after and the results are those of leaderIndex.
func (c *leaderClient) readIndex(ctx context.Context, to raft.ServerID, gid uint32,
	after raftlog.Position) (group.ReadIndex, group.Holding, error) {
	b := appendPosition(message(formFirst, gid), after)
	ctx, done := c.calls.begin(ctx, gid, to)
	defer done()
	out, err := c.peers.Call(ctx, string(to), MethodReadIndex, b)
	err = endedBy(ctx, "raftfsm.forward", err)
	c.metrics.forwarded(forwardReadIndex, err)
	if err != nil {
		return group.ReadIndex{}, group.Unknown, err
	}
	r := newFrame(out)
	ri := group.ReadIndex{Position: r.position(), Now: r.Uvarint()}
	held := group.Holding(r.Uvarint())
	if r.Bad {
		return ri, group.Unknown, errFrame(MethodReadIndex)
	}
	return ri, held, nil
}

// ask sends a call to the server that this node considers the leader. The parameter to is the id of that server.
func (c *leaderClient) ask(ctx context.Context, to raft.ServerID, gid uint32, method string, payload []byte) ([]byte,
	error) {
	ctx, done := c.calls.begin(ctx, gid, to)
	defer done()
	out, err := c.peers.Call(ctx, string(to), method, payload)
	err = endedBy(ctx, "raftfsm.forward", err)
	kind := forwardLock
	if method == MethodActor {
		kind = forwardActor
	}
	c.metrics.forwarded(kind, err)
	return out, err
}

// close ends the calls in flight.
func (c *leaderClient) close() { c.forward.close() }

func errNoLeader(op string, id uint32) error {
	return fault.New(fault.NotLeader, op, "no server is known to lead group "+utoa(id))
}

// Progress describes a replica of another server.
type Progress struct {
	Applied uint64 // last index that the server has applied
	Last    uint64 // last index of its log
	Wall    uint64 // its wall clock in Unix milliseconds; 0 = an earlier version, which does not report it
}

// Progress asks another server about its replica of a group. The parameter id is the id of the group. Progress returns
// the errors of Peers.Call.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (p Progress, err error) {
	out, err := h.opts.Peers.Call(ctx, server, MethodProgress, message(formFirst, id))
	if err != nil {
		return p, err
	}
	r := newFrame(out)
	p.Applied, p.Last = r.Uvarint(), r.Uvarint()
	if len(r.Rest) > 0 {
		p.Wall = r.Uvarint()
	}
	if r.Bad {
		return p, errFrame(MethodProgress)
	}
	return p, nil
}

// FindLeader asks each of the servers which server leads a group, and returns the id of the leader. It returns "" if
// no server reports a leader within pollWait. A node that is no longer a member needs this, because its own replica
// gets no information about the leader.
func (h *Host) FindLeader(ctx context.Context, gid uint32, servers []string) string {
	ctx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	answers := make(chan groupRoute, len(servers))
	for _, id := range servers {
		go func() {
			out, err := h.opts.Peers.Call(ctx, id, MethodRoute, message(formFirst, 0))
			groups, bad := readRoutes(out)
			if err != nil || bad != nil || int(gid) >= len(groups) {
				answers <- groupRoute{}
				return
			}
			answers <- groups[gid]
		}()
	}
	var best groupRoute
	for range servers {
		if a := <-answers; a.leader != "" && (best.leader == "" || a.term > best.term) {
			best = a
		}
	}
	return best.leader
}

// confirmer confirms terms with voters over Peers.
type confirmer struct {
	peers Peers
	id    uint32
}

// ConfirmTerm implements group.Confirmer. The call reaches exactly this server, or fails.
func (c confirmer) ConfirmTerm(ctx context.Context, server raft.Server, term uint64) error {
	if c.peers == nil {
		return fault.New(fault.Unavailable, "raftfsm.confirm", "this host has no way to other servers")
	}
	_, err := c.peers.Call(ctx, string(server.ID), MethodConfirm, binary.AppendUvarint(message(formFirst, c.id), term))
	return err
}

// appendAnswer encodes the outcome of a proposal.
func appendAnswer(b []byte, a *group.Answer) []byte {
	b = binary.AppendUvarint(b, a.Term)
	b = binary.AppendUvarint(b, a.Index)
	b = append(b, byte(a.Result.Outcome), boolByte(a.Result.Replayed), boolByte(a.Result.More))
	b = binary.AppendUvarint(b, a.Result.Index)
	b = binary.AppendUvarint(b, uint64(a.Result.Expired))
	b = binary.AppendUvarint(b, uint64(len(a.Result.Revisions)))
	for _, r := range a.Result.Revisions {
		b = binary.AppendUvarint(b, r)
	}
	return append(b, a.Result.Key...)
}

// readAnswer decodes the answer to a proposal. It returns fault.Indeterminate if the answer cannot be decoded, because
// the proposal may have been applied.
func readAnswer(b []byte) (group.Answer, error) {
	r := newFrame(b)
	a := group.Answer{Position: r.position()}
	a.Result.Outcome = kv.Outcome(r.Byte())
	a.Result.Replayed, a.Result.More = r.Byte() == 1, r.Byte() == 1
	a.Result.Index, a.Result.Expired = r.Uvarint(), int(r.Uvarint())
	for range r.Count() {
		a.Result.Revisions = append(a.Result.Revisions, r.Uvarint())
	}
	a.Result.Key = string(r.All())
	if r.Bad {
		return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward",
			Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
	}
	return a, nil
}
