package raftfsm

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Peers makes calls to the other servers of the cluster. A call returns the error that the called server has returned,
// fault.Unavailable if the call certainly did not arrive, or fault.Indeterminate if it may have arrived.
type Peers interface {
	Call(ctx context.Context, server, method string, payload []byte) ([]byte, error)
}

// Methods of the calls between servers, which Host.Serve answers. The names and the message formats are part of the
// protocol.
const (
	MethodPropose   = "raft.propose"    // requests for the leader's log
	MethodRead      = "raft.read"       // a read for a node without replicas
	MethodRoute     = "raft.route"      // the leaders known to a server, and the groups it can read
	MethodReadIndex = "raft.read-index" // a read index of the leader
	MethodConfirm   = "raft.confirm"    // whether a term is still the newest known
	MethodProgress  = "raft.progress"   // how far the log and the machine are
	MethodCompare   = "raft.compare"    // the digest of a server's state at an index, and the state of its disk
	MethodState     = "raft.state"      // a request for the server's whole state
	MethodWatch     = "raft.watch"      // the history of a prefix, for a node without replicas
	MethodLock      = "raft.lock"       // waits for a lock, or ends it
	MethodActor     = "raft.actor"      // the directory of actors
	MethodDue       = "raft.due"        // puts, removes or runs due work
	MethodRecall    = "raft.recall"     // what the server has seen of the caller in earlier incarnations
	MethodLost      = "raft.lost"       // whether the server has lost contact with a leader
)

// Methods lists the calls that Serve answers.
func Methods() []string {
	return []string{MethodPropose, MethodRead, MethodRoute, MethodReadIndex, MethodConfirm, MethodProgress,
		MethodCompare, MethodState, MethodRecall, MethodWatch, MethodLock, MethodActor,
		MethodDue, MethodLost}
}

// serve implements replica.
func (s *server) serve(ctx context.Context, method string, payload []byte) ([]byte, error) {
	r, form, gid, err := openCall(method, payload, len(s.groups))
	if err != nil {
		return nil, err
	}
	g := s.groups[gid]
	switch method {
	case MethodPropose:
		if form == formFirst {
			return s.serveProposeOne(ctx, g, r)
		}
		return s.servePropose(ctx, g, r)
	case MethodRead:
		return s.serveRead(ctx, gid, r)
	case MethodRoute:
		return s.serveRoute(r)
	case MethodReadIndex:
		return serveReadIndex(ctx, g, r)
	case MethodConfirm:
		term := r.Uvarint()
		if r.Bad {
			return nil, errFrame(method)
		}
		return nil, g.AnswerConfirm(term)
	case MethodCompare:
		return serveCompare(g, r)
	case MethodState:
		return nil, serveState(g, r)
	case MethodWatch:
		return s.serveWatch(ctx, gid, r)
	case MethodLock:
		return s.serveLock(ctx, gid, r)
	case MethodActor:
		return s.serveActor(ctx, gid, r)
	case MethodDue:
		return s.serveDue(ctx, gid, r)
	case MethodRecall:
		return serveRecall(g, r)
	case MethodLost:
		return serveLost(g, r)
	case MethodProgress:
		at := g.Status()
		b := binary.AppendUvarint(binary.AppendUvarint(nil, at.AppliedIndex), at.LastIndex)
		return binary.AppendUvarint(b, wallClock(s.opts.Now)), nil
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "unknown call "+method)
}

// openCall reads the head of a call and validates it for a node with this number of groups.
func openCall(method string, payload []byte, groups int) (r *frame, form uint64, gid uint32, err error) {
	r = newFrame(payload)
	form, id := r.Uvarint(), r.Uvarint()
	switch {
	case !r.Bad && form > newestForm(method):
		return nil, 0, 0, &fault.Error{Code: fault.Unimplemented, Op: "raftfsm.Serve",
			Msg: fmt.Sprintf("call %s has form %d, this server understands up to %d; nothing was done", method, form,
				newestForm(method)),
			Hint: "upgrade the older of the two nodes"}
	case r.Bad || form == 0 || id >= uint64(groups): //nolint:gosec // not negative
		return nil, 0, 0, fault.New(fault.Invalid, "raftfsm.Serve", fmt.Sprintf("call %s of form %d for group %d "+
			"cannot be decoded", method, form, id))
	}
	return r, form, uint32(id), nil //nolint:gosec // one of a few groups
}

// newestForm is the newest form of a call that this build understands.
func newestForm(method string) uint64 {
	if method == MethodPropose {
		return formBatches
	}
	return formFirst
}

func errFrame(method string) error {
	return fault.New(fault.Invalid, "raftfsm.Serve", "call "+method+" is truncated")
}

// whole returns nil if data is exactly one request that every replica can apply. Otherwise it returns fault.Invalid or
// fault.TooLarge. The caller must then not propose data, because applying it would halt all replicas.
func whole(data []byte) error {
	if len(data) > MaxRequest+restoreSlack {
		return fault.New(fault.TooLarge, "raftfsm.Serve", "a forwarded request is larger than a log entry may be")
	}
	b, err := command.Decode(append(command.AppendHeader(make([]byte, 0, command.HeaderSize+len(data)),
		command.Needs(data), 0, 1), data...))
	if err != nil || len(b.Requests) != 1 || command.IsFormat(data) {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Serve",
			Msg: "a forwarded request cannot be read, and was not executed", Err: err,
			Hint: "run the same version on all nodes"}
	}
	return nil
}

func serveReadIndex(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	after := r.position()
	if r.Bad {
		return nil, errFrame(MethodReadIndex)
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

// leaderIndex returns a read index. It also returns whether the log of this leader contains the entry at the position
// given by the parameter after. If the log contains the entry, committed or not, the read index is at or above that
// position.
//
// Invariant: leaderIndex returns group.Lost only on a server that led the group at that moment, because the log of any
// other server may just be behind. The session then removes the position that was reported as lost.
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
		// The entry arrived after Holds and before the read index, before this server led.
	}
}

// holds returns what a leader's log knows about a position; 0 for the zero position.
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

// serveProposeOne answers the first form, which servers of older versions send.
func (s *server) serveProposeOne(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	ack, values, data := group.Ack(r.Uvarint()), r.Uvarint() == 1, r.All()
	if r.Bad || ack > group.Durable { //nolint:gosec // bounded
		return nil, errFrame(MethodPropose)
	}
	a, err := s.proposeFor(ctx, g, data, ack, values)
	if err != nil {
		return nil, err
	}
	return appendAnswer(nil, &a), nil
}

// servePropose proposes every request of a batch and returns the outcomes in order.
func (s *server) servePropose(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	ack, n := group.Ack(r.Uvarint()), r.Uvarint()
	if r.Bad || ack > group.Durable || n == 0 || n > forwardCount {
		return nil, errFrame(MethodPropose)
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
		return nil, errFrame(MethodPropose)
	}
	answers := make([][]byte, n)
	var wg sync.WaitGroup
	for i, it := range items {
		wg.Go(func() {
			a, err := s.proposeFor(ctx, g, it.data, ack, it.values)
			if err != nil {
				answers[i] = appendString([]byte{1}, fault.Marshal(err))
				return
			}
			answers[i] = appendString([]byte{0}, appendAnswer(nil, &a))
		})
	}
	wg.Wait()
	var out []byte
	for _, a := range answers {
		out = append(out, a...)
	}
	return out, nil
}

// proposeFor proposes a request of another node. values is true if the request stores values.
func (s *server) proposeFor(ctx context.Context, g *group.Group, data []byte, ack group.Ack, values bool) (group.Answer,
	error) {
	if err := whole(data); err != nil {
		return group.Answer{}, err
	}
	return s.proposeHere(ctx, g, data, ack, values)
}
