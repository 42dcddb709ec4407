package peercalls

import (
	"context"
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// Progress describes the replica of a group on another server.
type Progress struct {
	Applied uint64 // last index that the server has applied
	Last    uint64 // last index of the log of that server
	Wall    uint64 // wall clock of that server in Unix milliseconds
}

// AskProgress returns the progress of another server's replica of a group. It returns the errors of Peers.Call, and an
// error if the answer cannot be decoded.
func AskProgress(ctx context.Context, peers Peers, server string, id uint32) (p Progress, err error) {
	out, err := peers.Call(ctx, server, MethodProgress, Message(id))
	if err != nil {
		return p, err
	}
	r := NewFrame(out)
	p.Applied, p.Last, p.Wall = r.Uvarint(), r.Uvarint(), r.Uvarint()
	if r.Bad {
		return p, ErrFrame(MethodProgress)
	}
	return p, nil
}

// FindLeader queries the given servers and returns the id of the server that leads a group. If the answers differ, it
// returns the leader with the highest term. It returns "" if no server reports a leader within a second.
func FindLeader(ctx context.Context, peers Peers, gid uint32, servers []string) string {
	ctx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	answers := make(chan GroupRoute, len(servers))
	for _, id := range servers {
		go func() {
			out, err := peers.Call(ctx, id, MethodRoute, Message(0))
			groups, bad := readRoutes(out)
			if err != nil || bad != nil || int(gid) >= len(groups) {
				answers <- GroupRoute{}
				return
			}
			answers <- groups[gid]
		}()
	}
	var best GroupRoute
	for range servers {
		if a := <-answers; a.Leader != "" && (best.Leader == "" || a.Term > best.Term) {
			best = a
		}
	}
	return best.Leader
}

// Confirmer confirms terms with voters over Peers.
type Confirmer struct {
	peers Peers
	id    uint32
}

// ConfirmerOf returns the Confirmer of a group.
func ConfirmerOf(p Peers, id uint32) Confirmer { return Confirmer{p, id} }

// ConfirmTerm implements group.Confirmer. The call fails if a server with another id answers in place of the given
// server.
func (c Confirmer) ConfirmTerm(ctx context.Context, server raft.Server, term uint64) error {
	if c.peers == nil {
		return fault.New(fault.Unavailable, "raftfsm.confirm", "this host has no way to other servers")
	}
	_, err := c.peers.Call(ctx, string(server.ID), MethodConfirm, binary.AppendUvarint(Message(c.id), term))
	return err
}
