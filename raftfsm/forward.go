package raftfsm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Peers reaches the other servers of the cluster. Errors are those of the other side, or
// unavailable if the call surely did not arrive, or indeterminate if it may have.
type Peers interface {
	Call(ctx context.Context, server, method string, payload []byte) ([]byte, error)
}

// The methods that servers call on each other. Host.Serve answers them. Names and forms
// are part of the protocol.
const (
	MethodPropose   = "raft.propose"    // requests for the leader's log
	MethodRead      = "raft.read"       // a read for a node without replicas
	MethodRoute     = "raft.route"      // who leads, and which groups the server can read
	MethodReadIndex = "raft.read-index" // a read index of the leader
	MethodConfirm   = "raft.confirm"    // whether a term is still the newest known
	MethodProgress  = "raft.progress"   // how far the log and the machine have got
	MethodCompare   = "raft.compare"    // the digest of a server's state at an index, and how its disk fares
	MethodState     = "raft.state"      // to be sent the server's whole state
)

// Methods lists the calls that Serve answers.
func Methods() []string {
	return []string{MethodPropose, MethodRead, MethodRoute, MethodReadIndex, MethodConfirm, MethodProgress, MethodCompare, MethodState}
}

// Serve answers a call of another server. Calls that only the leader can serve are
// refused with not_leader by others: a call is passed on once, never twice.
func (h *Host) Serve(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if err := h.allowed(); err != nil {
		return nil, err
	}
	r := newFrame(payload)
	form, id := r.Uvarint(), r.Uvarint()
	switch {
	case !r.Bad && form > newestForm(method):
		return nil, &fault.Error{Code: fault.Unimplemented, Op: "raftfsm.Serve",
			Msg:  fmt.Sprintf("call %s has form %d, this server understands up to %d; nothing of it was done", method, form, newestForm(method)),
			Hint: "upgrade the older of the two nodes"}
	case r.Bad || form == 0 || id >= uint64(len(h.groups)):
		return nil, fault.New(fault.Invalid, "raftfsm.Serve", fmt.Sprintf("call %s of form %d for group %d cannot be read", method, form, id))
	}
	g := h.groups[id]
	switch method {
	case MethodPropose:
		if form == formFirst {
			return h.serveProposeOne(ctx, g, r)
		}
		return h.servePropose(ctx, g, r)
	case MethodRead:
		return h.serveRead(ctx, uint32(id), r)
	case MethodRoute:
		return h.serveRoute(r)
	case MethodReadIndex:
		return h.serveReadIndex(ctx, g, r)
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
	case MethodProgress:
		s := g.Status()
		return binary.AppendUvarint(binary.AppendUvarint(nil, s.AppliedIndex), s.LastIndex), nil
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "unknown call "+method)
}

// newestForm is the newest form of a call that this build understands.
func newestForm(method string) uint64 {
	if method == MethodPropose {
		return formBatches
	}
	return formFirst
}

func errFrame(method string) error {
	return fault.New(fault.Invalid, "raftfsm.Serve", "call "+method+" is cut off")
}

// whole refuses what is not exactly one request that every replica can apply: in the log
// it would stop them all.
func whole(data []byte) error {
	if len(data) > MaxRequest+restoreSlack {
		return fault.New(fault.TooLarge, "raftfsm.Serve", "a forwarded request is larger than a log entry may be")
	}
	b, err := command.Decode(append(command.AppendHeader(make([]byte, 0, command.HeaderSize+len(data)), command.Needs(data), 0, 1), data...))
	if err != nil || len(b.Requests) != 1 || command.IsFormat(data) {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Serve", Msg: "a forwarded request cannot be read; nothing of it was done", Err: err,
			Hint: "run the same version on all nodes"}
	}
	return nil
}

func (h *Host) serveReadIndex(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
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

// leaderIndex gives a read index that covers after, if the leader's log holds it: a
// session may have seen an entry that is not committed yet.
//
// Invariant: a position is called lost only by a server that led when it looked, which the
// read index proves: the log of any other may simply not reach so far, and what is called
// lost is forgotten by its session.
func leaderIndex(ctx context.Context, g *group.Group, after group.Position) (group.ReadIndex, group.Holding, error) {
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
		// It arrived between the look and the proof, before this server led.
	}
}

// holds says what the log of a leader tells about a position; 0 is that of nothing.
func holds(g *group.Group, p group.Position) group.Holding {
	if p.Index == 0 {
		return group.Held
	}
	held := g.Holds(p)
	if held == group.Unknown && p.Index > g.LastIndex() {
		return group.Lost // beyond the leader's log: it went with an earlier leader
	}
	return held
}

// remotePropose asks another server, taken for the leader, to propose.
func (h *Host) remotePropose(ctx context.Context, to raft.ServerID, id uint32, data group.Encoded, ack group.Ack, values bool) (group.Answer, error) {
	if to == "" {
		return group.Answer{}, errNoLeader("raftfsm.forward", id)
	}
	a, err := h.forward.propose(ctx, laneKey{to: to, group: id, ack: ack}, data, values)
	h.failed(to, err)
	return a, err
}

func errNoLeader(op string, id uint32) error {
	return fault.New(fault.NotLeader, op, "no server is known to lead group "+utoa(id))
}

// remoteReadIndex asks another server, taken for the leader, for a read index.
func (h *Host) remoteReadIndex(ctx context.Context, to raft.ServerID, id uint32, after group.Position) (group.ReadIndex, group.Holding, error) {
	b := appendPosition(message(formFirst, id), after)
	ctx, done := h.await(ctx, id, to)
	defer done()
	out, err := h.opts.Peers.Call(ctx, string(to), MethodReadIndex, b)
	err = endedBy(ctx, "raftfsm.forward", err)
	h.metrics.forwarded(forwardReadIndex, err)
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

// Progress asks another server how far it has got in a group: the index its machine has
// applied, and the last index of its log.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (applied, last uint64, err error) {
	out, err := h.opts.Peers.Call(ctx, server, MethodProgress, message(formFirst, id))
	if err != nil {
		return 0, 0, err
	}
	r := newFrame(out)
	applied, last = r.Uvarint(), r.Uvarint()
	if r.Bad {
		return 0, 0, errFrame(MethodProgress)
	}
	return applied, last, nil
}

// confirmer asks voters over Peers.
type confirmer struct {
	peers Peers
	id    uint32
}

// ConfirmTerm implements group.Confirmer. The call reaches that very server, or fails.
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

// readAnswer decodes the outcome of a proposal. An answer that cannot be read says
// nothing about what was done.
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
		return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward", Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
	}
	return a, nil
}
