package raftfsm

import (
	"context"
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/transport"
)

// witnesses queries servers over Peers about what they have recorded of this server.
type witnesses struct {
	peers peercalls.Peers
	id    uint32
}

// witnessesOf returns the witnesses of the group with the given id. It returns nil if there are no peers.
func witnessesOf(p peercalls.Peers, id uint32) transport.Witnesses {
	if p == nil {
		return nil
	}
	return witnesses{p, id}
}

// Recall implements transport.Witnesses.
func (w witnesses) Recall(ctx context.Context, server, self raft.ServerID, now raftlog.Seen) (raftlog.Seen, error) {
	b := lenprefix.Append(peercalls.Message(w.id), string(self))
	out, err := w.peers.Call(ctx, string(server), peercalls.MethodRecall, appendRecalled(b, now))
	if err != nil {
		return raftlog.Seen{}, err
	}
	f := peercalls.NewFrame(out)
	seen := readRecalled(f)
	if f.Bad {
		return raftlog.Seen{}, peercalls.ErrFrame(peercalls.MethodRecall)
	}
	return seen, nil
}

// serveRecall answers another server's call Recall. It returns the record that this server has of the caller, and then
// adds the state that the caller reports to this record.
func serveRecall(g *group.Group, f *peercalls.Frame) ([]byte, error) {
	server, now := f.Text(), readRecalled(f)
	if f.Bad || server == "" {
		return nil, peercalls.ErrFrame(peercalls.MethodRecall)
	}
	return appendRecalled(nil, g.Recall(raft.ServerID(server), now)), nil
}

func appendRecalled(b []byte, s raftlog.Seen) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, s.Term), s.Vote)
	return binary.AppendUvarint(peercalls.AppendPosition(b, s.Matched), s.Committed)
}

func readRecalled(f *peercalls.Frame) raftlog.Seen {
	return raftlog.Seen{Term: f.Uvarint(), Vote: f.Uvarint(), Matched: f.Position(), Committed: f.Uvarint()}
}

// Meet queries another server for its records of this server, with one query for each group. It repeats the queries in
// the background until they are answered, so call Meet only for a reachable server. It skips a group if the other
// server has already answered since the start.
func (h *Host) Meet(server string) {
	for _, g := range h.groups {
		g.Meet(raft.ServerID(server))
	}
}
