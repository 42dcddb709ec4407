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
	MethodPropose   = "raft.propose"    // a request for the leader's log
	MethodReadIndex = "raft.read-index" // a read index of the leader
	MethodConfirm   = "raft.confirm"    // whether a term is still the newest known
	MethodProgress  = "raft.progress"   // how far the log and the machine have got
)

// Methods lists the calls that Serve answers.
func Methods() []string {
	return []string{MethodPropose, MethodReadIndex, MethodConfirm, MethodProgress}
}

// forwardVersion is the form of these messages. Every message begins with it and the group.
const forwardVersion = 1

// Serve answers a call of another server. Calls that only the leader can serve are
// refused with not_leader by others: a call is passed on once, never twice.
func (h *Host) Serve(ctx context.Context, method string, payload []byte) ([]byte, error) {
	r := &frame{b: payload}
	version, id := r.uvarint(), r.uvarint()
	if r.bad || version != forwardVersion || id >= uint64(len(h.groups)) {
		return nil, fault.New(fault.Invalid, "raftfsm.Serve", fmt.Sprintf("call %s of version %d for group %d cannot be read", method, version, id))
	}
	g := h.groups[id]
	switch method {
	case MethodPropose:
		return h.servePropose(ctx, g, r)
	case MethodReadIndex:
		return h.serveReadIndex(ctx, g, r)
	case MethodConfirm:
		term := r.uvarint()
		if r.bad {
			return nil, errFrame(method)
		}
		return nil, g.AnswerConfirm(term)
	case MethodProgress:
		s := g.Status()
		return binary.AppendUvarint(binary.AppendUvarint(nil, s.AppliedIndex), s.LastIndex), nil
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "unknown call "+method)
}

func errFrame(method string) error {
	return fault.New(fault.Invalid, "raftfsm.Serve", "call "+method+" is cut off")
}

func (h *Host) servePropose(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	ack, values, data := group.Ack(r.uvarint()), r.uvarint() == 1, r.rest()
	if r.bad || ack > group.Durable {
		return nil, errFrame(MethodPropose)
	}
	if values {
		if err := h.space.allowed(); err != nil {
			return nil, err
		}
	}
	if err := whole(data); err != nil {
		return nil, err
	}
	a, err := g.Propose(ctx, data, outcomeKnown(g, ack))
	if err != nil {
		return nil, err
	}
	return appendAnswer(nil, &a), nil
}

// whole refuses what is not exactly one request that every replica can apply: in the log
// it would stop them all.
func whole(data []byte) error {
	if len(data) > MaxRequest {
		return fault.New(fault.TooLarge, "raftfsm.Serve", "a forwarded request is larger than a log entry may be")
	}
	b, err := command.Decode(append(command.AppendHeader(make([]byte, 0, command.HeaderSize+len(data)), 0, 1), data...))
	if err != nil || len(b.Requests) != 1 {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Serve", Msg: "a forwarded request cannot be read; nothing of it was done", Err: err,
			Hint: "run the same version on all nodes"}
	}
	return nil
}

func (h *Host) serveReadIndex(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	after := group.Position{Term: r.uvarint(), Index: r.uvarint()}
	if r.bad {
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
func leaderIndex(ctx context.Context, g *group.Group, after group.Position) (group.ReadIndex, group.Holding, error) {
	held := group.Held
	if after.Index > 0 {
		held = g.Holds(after)
		if held == group.Unknown && after.Index > g.LastIndex() {
			held = group.Lost // beyond the leader's log: it went with an earlier leader
		}
		if held == group.Held {
			if err := g.WaitApplied(ctx, after.Index); err != nil {
				return group.ReadIndex{}, held, err
			}
		}
	}
	ri, err := g.ReadIndex(ctx)
	return ri, held, err
}

// message begins a call about a group.
func message(id uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 32), forwardVersion), uint64(id))
}

// remotePropose asks another server, taken for the leader, to propose.
func (h *Host) remotePropose(ctx context.Context, to raft.ServerID, id uint32, data group.Encoded, ack group.Ack, values bool) (group.Answer, error) {
	b := binary.AppendUvarint(message(id), uint64(ack))
	flag := uint64(0)
	if values {
		flag = 1
	}
	b = append(binary.AppendUvarint(b, flag), data...)
	out, err := h.opts.Peers.Call(ctx, string(to), MethodPropose, b)
	if err != nil {
		return group.Answer{}, err
	}
	return readAnswer(out)
}

// remoteReadIndex asks another server, taken for the leader, for a read index.
func (h *Host) remoteReadIndex(ctx context.Context, to raft.ServerID, id uint32, after group.Position) (group.ReadIndex, group.Holding, error) {
	b := binary.AppendUvarint(binary.AppendUvarint(message(id), after.Term), after.Index)
	out, err := h.opts.Peers.Call(ctx, string(to), MethodReadIndex, b)
	if err != nil {
		return group.ReadIndex{}, 0, err
	}
	r := &frame{b: out}
	ri := group.ReadIndex{Position: group.Position{Term: r.uvarint(), Index: r.uvarint()}, Now: r.uvarint()}
	held := group.Holding(r.uvarint())
	if r.bad {
		return ri, held, errFrame(MethodReadIndex)
	}
	return ri, held, nil
}

// Progress asks another server how far it has got in a group: the index its machine has
// applied, and the last index of its log.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (applied, last uint64, err error) {
	out, err := h.opts.Peers.Call(ctx, server, MethodProgress, message(id))
	if err != nil {
		return 0, 0, err
	}
	r := &frame{b: out}
	applied, last = r.uvarint(), r.uvarint()
	if r.bad {
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
	_, err := c.peers.Call(ctx, string(server.ID), MethodConfirm, binary.AppendUvarint(message(c.id), term))
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

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// readAnswer decodes the outcome of a proposal. An answer that cannot be read says
// nothing about what was done.
func readAnswer(b []byte) (group.Answer, error) {
	r := &frame{b: b}
	a := group.Answer{Position: group.Position{Term: r.uvarint(), Index: r.uvarint()}}
	a.Result.Outcome = kv.Outcome(r.byte())
	a.Result.Replayed, a.Result.More = r.byte() == 1, r.byte() == 1
	a.Result.Index, a.Result.Expired = r.uvarint(), int(r.uvarint())
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad = true
		n = 0
	}
	for range n {
		a.Result.Revisions = append(a.Result.Revisions, r.uvarint())
	}
	a.Result.Key = string(r.rest())
	if r.bad {
		return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward", Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
	}
	return a, nil
}

// frame reads a message; bad is set by the first part that is missing.
type frame struct {
	b   []byte
	bad bool
}

func (f *frame) uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *frame) byte() byte {
	if len(f.b) == 0 {
		f.bad = true
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

func (f *frame) rest() []byte {
	v := f.b
	f.b = nil
	return v
}
