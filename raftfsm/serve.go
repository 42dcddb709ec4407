package raftfsm

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// serve implements replica.
func (s *server) serve(ctx context.Context, method string, payload []byte) ([]byte, error) {
	r, gid, err := openCall(method, payload, len(s.groups))
	if err != nil {
		return nil, err
	}
	g := s.groups[gid]
	switch method {
	case peercalls.MethodPropose:
		return s.servePropose(ctx, g, r)
	case peercalls.MethodRead:
		return s.serveRead(ctx, gid, r)
	case peercalls.MethodRoute:
		return s.serveRoute(r)
	case peercalls.MethodReadIndex:
		return serveReadIndex(ctx, g, r)
	case peercalls.MethodConfirm:
		term := r.Uvarint()
		if r.Bad {
			return nil, peercalls.ErrFrame(method)
		}
		return nil, g.AnswerConfirm(term)
	case peercalls.MethodCompare:
		return serveCompare(g, r)
	case peercalls.MethodState:
		return nil, serveState(g, r)
	case peercalls.MethodWatch, peercalls.MethodWatchWait:
		return s.serveWatch(ctx, gid, r)
	case peercalls.MethodLock, peercalls.MethodLockWait:
		return s.keepers[gid].Serve(ctx, &r.Reader)
	case peercalls.MethodActor:
		return s.actors[gid].Serve(ctx, &r.Reader)
	case peercalls.MethodDue:
		return s.serveDue(ctx, gid, r)
	case peercalls.MethodTopic, peercalls.MethodTopicWait:
		if topics.Stores(r.Rest) {
			if err := s.writesAllowed(gid); err != nil {
				return nil, err
			}
		}
		return s.topics[gid].Serve(ctx, &r.Reader)
	case peercalls.MethodWorkflow, peercalls.MethodWorkflowWait:
		if workflows.Stores(r.Rest) {
			if err := s.writesAllowed(gid); err != nil {
				return nil, err
			}
		}
		return s.workflows[gid].Serve(ctx, &r.Reader)
	case peercalls.MethodRecall:
		return serveRecall(g, r)
	case peercalls.MethodLost:
		return serveLost(g, r)
	case peercalls.MethodProgress:
		at := g.Status()
		b := binary.AppendUvarint(binary.AppendUvarint(nil, at.AppliedIndex), at.LastIndex)
		return binary.AppendUvarint(b, wallClock(s.opts.Now)), nil
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "unknown call "+method)
}

// serveDue answers a call about due work of a group that this server leads.
func (s *server) serveDue(ctx context.Context, gid uint32, r *peercalls.Frame) ([]byte, error) {
	size := len(r.Rest)
	c, err := due.ReadCall(&r.Reader)
	if err != nil {
		return nil, err
	}
	if c.Stores() {
		done, err := s.admitValues(ctx, gid, size)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	return s.due[gid].Serve(ctx, &c)
}

// openCall reads the version of the message format (the form) and the group id at the beginning of a call. groups is
// the number of groups of this node. openCall returns fault.Unimplemented if this build does not know the form yet. It
// returns fault.Invalid if the call is malformed or this node does not have the group.
func openCall(method string, payload []byte, groups int) (r *peercalls.Frame, gid uint32, err error) {
	r = peercalls.NewFrame(payload)
	form, id := r.Uvarint(), r.Uvarint()
	switch {
	case !r.Bad && form > peercalls.Form:
		return nil, 0, &fault.Error{Code: fault.Unimplemented, Op: "raftfsm.Serve",
			Msg: fmt.Sprintf("call %s has form %d, this server understands up to %d; nothing was done", method, form,
				peercalls.Form),
			Hint: "upgrade the older of the two nodes"}
	case r.Bad || form == 0 || id >= uint64(groups): //nolint:gosec // not negative
		return nil, 0, fault.New(fault.Invalid, "raftfsm.Serve", fmt.Sprintf("call %s of form %d for group %d "+
			"cannot be decoded", method, form, id))
	}
	return r, uint32(id), nil //nolint:gosec // one of a few groups
}

// serveRoute answers another node's query about the groups of this server. The answer contains for each group which
// server leads it, whether this server's replica can be read, and whether the group refuses values.
func (s *server) serveRoute(r *peercalls.Frame) ([]byte, error) {
	if len(r.Rest) > 0 {
		return nil, peercalls.ErrFrame(peercalls.MethodRoute)
	}
	routes := make([]peercalls.GroupRoute, len(s.groups))
	for i, g := range s.groups {
		member := false
		servers, _ := g.Servers()
		for _, m := range servers {
			member = member || string(m.ID) == s.node.self.Server
		}
		routes[i] = peercalls.GroupRoute{Leader: string(g.Leader()), Term: g.Term(), Reads: member && g.CaughtUp(),
			Full: s.writesAllowed(uint32(i)) != nil} //nolint:gosec // few
	}
	return peercalls.AppendRoutes(nil, routes), nil
}

// whole checks that data is exactly one request that every replica can apply. Other data must not be proposed, because
// it could stop all replicas. The error is one of these:
//
//   - fault.TooLarge: data is too large for a log entry
//   - fault.Corrupt: data is a step of a restore with a remembered result that cannot be decoded
//   - fault.Invalid: data is unusable for any other reason
func whole(data []byte) error {
	if len(data) > maxProposal {
		return fault.New(fault.TooLarge, "raftfsm.Serve", "a forwarded request is larger than a log entry may be")
	}
	b, err := command.Decode(append(command.AppendHeader(make([]byte, 0, command.HeaderSize+len(data)),
		command.Needs(data), 0, 1), data...))
	if err != nil || len(b.Requests) != 1 || command.IsFormat(data) {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Serve",
			Msg: "a forwarded request cannot be read, and was not executed", Err: err,
			Hint: "run the same version on all nodes"}
	}
	if step := b.Requests[0].Restore; step != nil {
		for i := range step.Remembered {
			if err := checkRemembered(&step.Remembered[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func serveReadIndex(ctx context.Context, g *group.Group, r *peercalls.Frame) ([]byte, error) {
	after := r.Position()
	if r.Bad {
		return nil, peercalls.ErrFrame(peercalls.MethodReadIndex)
	}
	ri, held, err := leaderIndex(ctx, g, after)
	if err != nil {
		return nil, err
	}
	b := binary.AppendUvarint(nil, ri.Term)
	b = binary.AppendUvarint(b, ri.Index)
	b = binary.AppendUvarint(b, ri.Now)
	return binary.AppendUvarint(b, uint64(held)), nil
}

// leaderIndex returns a read index, and whether this leader's log contains the entry at a given position. If the log
// contains the entry, leaderIndex waits until the entry is applied, so the read index is at or above the position.
//
// Invariant: if the result is group.Lost, this server led the group at that moment. The entry is then lost, and the
// caller may remove its position from the session. On another server, the entry might only be missing because the log
// is behind.
func leaderIndex(ctx context.Context, g *group.Group, after raftlog.Position) (group.ReadIndex, group.Holding, error) {
	for {
		held := holds(g, after)
		if held == group.Held && after.Index > 0 {
			if err := g.WaitApplied(ctx, after.Index); err != nil {
				return group.ReadIndex{}, group.Unknown, err
			}
		}
		ri, err := g.ReadIndex(ctx)
		if err != nil {
			return group.ReadIndex{}, group.Unknown, err
		}
		if held != group.Lost || holds(g, after) == group.Lost {
			return ri, held, nil
		}
		// The entry arrived after the first call of holds, before this server became the leader. Try again.
	}
}

// holds reports whether the log of a leader contains the entry at p. The result is always group.Held for index 0, and
// group.Lost for an index above the last one in the log.
func holds(g *group.Group, p raftlog.Position) group.Holding {
	if p.Index == 0 {
		return group.Held
	}
	held := g.Holds(p)
	if held == group.Unknown && p.Index > g.LastIndex() {
		return group.Lost // beyond the leader's log: it was lost with an earlier leader
	}
	return held
}

// servePropose proposes every request of a batch and returns the outcomes in order.
func (s *server) servePropose(ctx context.Context, g *group.Group, r *peercalls.Frame) ([]byte, error) {
	ack, n := group.Ack(r.Uvarint()), r.Uvarint()
	if r.Bad || ack > group.Durable || n == 0 || n > peercalls.ForwardCount {
		return nil, peercalls.ErrFrame(peercalls.MethodPropose)
	}
	type item struct {
		values bool
		data   []byte
	}
	items := make([]item, n)
	for i := range items {
		items[i] = item{values: r.Byte() == 1, data: r.Bytes()}
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, peercalls.ErrFrame(peercalls.MethodPropose)
	}
	answers := make([][]byte, n)
	var wg sync.WaitGroup
	for i, it := range items {
		wg.Go(func() {
			a, err := s.proposeFor(ctx, g, it.data, ack, it.values)
			if err != nil {
				answers[i] = lenprefix.Append([]byte{1}, fault.Marshal(cancelled(ctx, err)))
				return
			}
			answers[i] = lenprefix.Append([]byte{0}, peercalls.AppendAnswer(nil, &a))
		})
	}
	wg.Wait()
	var out []byte
	for _, a := range answers {
		out = append(out, a...)
	}
	return out, nil
}

// proposeFor proposes a request of another node. hasValues is true if the request stores values.
func (s *server) proposeFor(ctx context.Context, g *group.Group, data []byte, ack group.Ack,
	hasValues bool) (group.Answer, error) {
	if err := whole(data); err != nil {
		return group.Answer{}, err
	}
	return s.proposeHere(ctx, g, data, ack, hasValues)
}

// serveLost answers another server's call LeaderLost, which names a leader. The answer is one byte: 1 if this server
// has lost contact with the named leader (see group.Group.LeaderLost), and otherwise 0.
func serveLost(g *group.Group, f *peercalls.Frame) ([]byte, error) {
	leader := f.Text()
	if f.Bad {
		return nil, peercalls.ErrFrame(peercalls.MethodLost)
	}
	return []byte{peercalls.BoolByte(g.LeaderLost(raft.ServerID(leader)))}, nil
}
