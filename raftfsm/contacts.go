package raftfsm

import (
	"context"
	"errors"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/group"
)

// contacts asks servers over Peers whether they have lost contact with a leader.
type contacts struct {
	peers Peers
	id    uint32
}

// contactsOf returns nil if there are no peers.
func contactsOf(p Peers, id uint32) group.Contacts {
	if p == nil {
		return nil
	}
	return contacts{p, id}
}

// LeaderLost implements group.Contacts. It asks the given server whether the leader is lost. If that server is the
// leader itself, a refused connection means yes: its process has ended, because no process listens on its peer port. A
// host that is down or unreachable does not refuse connections.
func (c contacts) LeaderLost(ctx context.Context, server, leader raft.ServerID) bool {
	out, err := c.peers.Call(ctx, string(server), MethodLost, appendString(message(formFirst, c.id), string(leader)))
	if err != nil {
		return server == leader && errors.Is(err, syscall.ECONNREFUSED)
	}
	return len(out) == 1 && out[0] == 1
}

// serveLost answers LeaderLost of another server with one byte, 0 or 1.
func serveLost(g *group.Group, f *frame) ([]byte, error) {
	leader := f.Text()
	if f.Bad {
		return nil, errFrame(MethodLost)
	}
	return []byte{boolByte(g.LeaderLost(raft.ServerID(leader)))}, nil
}
