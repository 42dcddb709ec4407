package raftfsm

import (
	"context"
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/transport"
)

// witnesses queries servers over Peers about what they have seen of this one.
type witnesses struct {
	peers Peers
	id    uint32
}

// witnessesOf returns nil if there are no peers.
func witnessesOf(p Peers, id uint32) transport.Witnesses {
	if p == nil {
		return nil
	}
	return witnesses{p, id}
}

// Recall implements transport.Witnesses.
func (w witnesses) Recall(ctx context.Context, server, self raft.ServerID, now raftlog.Seen) (raftlog.Seen, error) {
	out, err := w.peers.Call(ctx, string(server), MethodRecall, appendRecalled(appendString(message(formFirst, w.id),
		string(self)), now))
	if err != nil {
		return raftlog.Seen{}, err
	}
	f := newFrame(out)
	seen := f.recalled()
	if f.Bad {
		return raftlog.Seen{}, errFrame(MethodRecall)
	}
	return seen, nil
}

// serveRecall answers a Recall of another server. It returns what this server has recorded about the calling server so
// far, and then records what the calling server has now.
func serveRecall(g *group.Group, f *frame) ([]byte, error) {
	server, now := f.Text(), f.recalled()
	if f.Bad || server == "" {
		return nil, errFrame(MethodRecall)
	}
	return appendRecalled(nil, g.Recall(raft.ServerID(server), now)), nil
}

func appendRecalled(b []byte, s raftlog.Seen) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, s.Term), s.Vote)
	return binary.AppendUvarint(appendPosition(b, s.Matched), s.Committed)
}

func (f *frame) recalled() raftlog.Seen {
	return raftlog.Seen{Term: f.Uvarint(), Vote: f.Uvarint(), Matched: f.position(), Committed: f.Uvarint()}
}

// Meet asks another server, which must be reachable, what it has recorded about this server. It does nothing if that
// server has already answered since the start.
func (h *Host) Meet(server string) {
	for _, g := range h.groups {
		g.Meet(raft.ServerID(server))
	}
}
