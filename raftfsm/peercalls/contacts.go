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

// ContactsOf returns a group.Contacts for the group with the given id. It makes its calls through p. If p is nil,
// ContactsOf returns nil.
func ContactsOf(p Peers, id uint32) group.Contacts {
	if p == nil {
		return nil
	}
	return contacts{p, id}
}

// LeaderLost implements group.Contacts. It calls server and returns whether that server has lost contact with leader.
//
// If the call goes to the leader itself and the connection is refused, LeaderLost returns true. A refused connection
// means that no process listens on the peer port, so the leader has ended. A host that is down or unreachable does not
// refuse connections. After any other error, LeaderLost returns false.
func (c contacts) LeaderLost(ctx context.Context, server, leader raft.ServerID) bool {
	b := lenprefix.Append(Message(c.id), string(leader))
	out, err := c.peers.Call(ctx, string(server), MethodLost, b)
	if err != nil {
		return server == leader && errors.Is(err, syscall.ECONNREFUSED)
	}
	return len(out) == 1 && out[0] == 1
}
