package peercalls

import (
	"context"
	"errors"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/group"
)

// contacts asks servers over Peers whether they have lost contact with a leader.
type contacts struct {
	peers Peers
	id    uint32
}

// ContactsOf returns the Contacts of the group with the given id. It returns nil if there are no peers.
func ContactsOf(p Peers, id uint32) group.Contacts {
	if p == nil {
		return nil
	}
	return contacts{p, id}
}

// LeaderLost implements group.Contacts. It calls server and returns whether that server has lost contact with leader.
// If server is the leader itself, a refused connection counts as true: no process listens on the peer port, so the
// leader has ended. A host that is down or unreachable does not refuse connections. After any other error, the result
// is false.
func (c contacts) LeaderLost(ctx context.Context, server, leader raft.ServerID) bool {
	b := lenprefix.Append(Message(c.id), string(leader))
	out, err := c.peers.Call(ctx, string(server), MethodLost, b)
	if err != nil {
		return server == leader && errors.Is(err, syscall.ECONNREFUSED)
	}
	return len(out) == 1 && out[0] == 1
}
