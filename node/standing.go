package node

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
)

// methodStanding asks a server whether another, by default the caller, was removed from
// the cluster. The answer is one byte: 1 if it was, from every group and for good.
const methodStanding = "cluster.standing"

const (
	standingPause = time.Second // between questions
	standingWait  = time.Second // for one answer
)

// standing finds out when this server has been removed: it may have been down meanwhile,
// and nobody calls those who were removed.
//
// A yes of any server can be believed: marks are committed and never deleted, and nobody
// who bears one is taken in again.
type standing struct {
	node *Node
	last time.Time
}

// check asks the others if there is reason to.
func (s *standing) check(ctx context.Context) {
	n := s.node
	if n.sidecar() || n.host.Removed() != nil || !s.suspicious() || n.deps.Now().Sub(s.last) < standingPause {
		return
	}
	s.last = n.deps.Now()
	if !s.ask(ctx) {
		return
	}
	if err := n.host.Retire(); err != nil {
		n.log.Error("this server was removed from the cluster, and that cannot be noted on its disk", "error", err)
		return
	}
	n.log.Error("this server was removed from the cluster", "error", fault.Text(n.host.Removed()))
}

// suspicious reports whether a group has no leader to be heard of, or marks this server, or
// does not know it any more.
func (s *standing) suspicious() bool {
	self := s.node.host.Identity().Server
	for i, g := range s.node.host.Groups() {
		if g.Leading() {
			continue
		}
		st := s.node.host.Standing(uint32(i), self)
		if g.Leader() == "" || st.Removed || !st.Member {
			return true
		}
	}
	return false
}

// ask puts the question to every other server that is alive, all at once.
func (s *standing) ask(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, standingWait)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	out := false
	self := s.node.host.Identity().Server
	for _, m := range s.node.gossip.Load().Roster().Alive() {
		if m.Role != membership.Server || m.ServerID == self {
			continue
		}
		wg.Go(func() {
			b, err := s.node.port.Client().Call(ctx, m.ServerID, methodStanding, nil)
			mu.Lock()
			defer mu.Unlock()
			out = out || err == nil && len(b) == 1 && b[0] == 1
		})
	}
	wg.Wait()
	return out
}

// serveStanding answers methodStanding about the caller.
func (n *Node) serveStanding(_ context.Context, r peer.Request) ([]byte, error) {
	groups := n.host.Groups()
	if err := n.host.Removed(); err != nil {
		return nil, err // it has heard nothing for a while
	}
	for i := range groups {
		st := n.host.Standing(uint32(i), r.From.Server)
		if st.Member || !st.Settled || !st.Removed {
			return []byte{0}, nil
		}
	}
	return []byte{1}, nil
}
