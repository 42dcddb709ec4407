package raftfsm

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// replicas queries other servers about the state of their replicas.
type replicas struct {
	peers peercalls.Peers
	id    uint32
}

// replicasOf returns the replicas of the group with the given id. It returns nil if there are no peers.
func replicasOf(p peercalls.Peers, id uint32) integrity.Replicas {
	if p == nil {
		return nil
	}
	return replicas{p, id}
}

// Bits of a report.
const (
	reportMarked = 1 << iota
	reportDoubted
	reportSlow
)

// Compare implements integrity.Replicas.
func (c replicas) Compare(ctx context.Context, server raft.Server, index uint64) (integrity.Report, error) {
	b := binary.AppendUvarint(peercalls.Message(c.id), index)
	out, err := c.peers.Call(ctx, string(server.ID), peercalls.MethodCompare, b)
	if err != nil {
		return integrity.Report{}, err
	}
	f := peercalls.NewFrame(out)
	bits := f.Byte()
	r := integrity.Report{Marked: bits&reportMarked != 0, Doubted: bits&reportDoubted != 0, Slow: bits&reportSlow != 0}
	for i := range r.Digest {
		r.Digest[i] = f.Uvarint()
	}
	r.Append = time.Duration(f.Uvarint()) //nolint:gosec // nanoseconds of a write
	if f.Bad {
		return integrity.Report{}, peercalls.ErrFrame(peercalls.MethodCompare)
	}
	return r, nil
}

func serveCompare(g *group.Group, f *peercalls.Frame) ([]byte, error) {
	index := f.Uvarint()
	if f.Bad {
		return nil, peercalls.ErrFrame(peercalls.MethodCompare)
	}
	r := g.AnswerCompare(index)
	bits := byte(0)
	for bit, set := range map[byte]bool{reportMarked: r.Marked, reportDoubted: r.Doubted, reportSlow: r.Slow} {
		if set {
			bits |= bit
		}
	}
	b := []byte{bits}
	for _, d := range r.Digest {
		b = binary.AppendUvarint(b, d)
	}
	return binary.AppendUvarint(b, uint64(r.Append)), nil //nolint:gosec // positive
}

// AskState implements integrity.Replicas.
func (c replicas) AskState(ctx context.Context, server raft.Server, ask integrity.StateRequest) error {
	b := binary.AppendUvarint(peercalls.Message(c.id), ask.Applied)
	b = binary.AppendUvarint(b, ask.Nonce)
	_, err := c.peers.Call(ctx, string(server.ID), peercalls.MethodState, lenprefix.Append(b, string(ask.To)))
	return err
}

// serveState accepts another server's request for the state of this server. The state is sent in the background.
// serveState returns fault.Denied if the requesting server is not a member of the group.
func serveState(g *group.Group, f *peercalls.Frame) error {
	ask := integrity.StateRequest{Applied: f.Uvarint(), Nonce: f.Uvarint(), To: raft.ServerID(f.Text())}
	if f.Bad || len(f.Rest) > 0 {
		return peercalls.ErrFrame(peercalls.MethodState)
	}
	servers, _ := g.Servers()
	for _, s := range servers {
		if s.ID == ask.To {
			return g.AnswerState(ask)
		}
	}
	return fault.New(fault.Denied, "raftfsm.Serve", "a server that is not a member of the group requested its state")
}
