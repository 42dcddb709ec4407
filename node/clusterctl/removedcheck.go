package clusterctl

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
)

// methodRemovedCheck is the peer method that answers whether the calling server was permanently removed from every
// group. The answer is one byte: 1 for yes, 0 for no.
const methodRemovedCheck = "cluster.standing"

const (
	removedPause = time.Second // between checks
	removedWait  = time.Second // timeout of one answer
)

// removedCheck finds out whether this server was removed from the cluster. It queries other servers, because this
// server may have been down during its removal, and no node connects to a removed server.
//
// One positive answer is enough, because a removed server is never added again.
type removedCheck struct {
	parts
	leaving *atomic.Bool // Leave was called at this node
	last    time.Time
}

// run queries the other servers if this server may have been removed, but at most once in removedPause. If it was
// removed, run records this on the disk. It logs an error, unless the operator of this node has called Leave.
func (s *removedCheck) run(ctx context.Context) {
	if s.opts.Sidecar || s.host.Removed() != nil || !s.suspicious() || s.now().Sub(s.last) < removedPause {
		return
	}
	s.last = s.now()
	if !s.ask(ctx) {
		return
	}
	if err := s.host.Retire(); err != nil {
		s.log.Error("this server was removed from the cluster, but that cannot be recorded on its disk", "error", err)
		return
	}
	if s.leaving.Load() {
		s.log.Info("this node has left its groups on request and can be stopped")
		return
	}
	s.log.Error("this server was removed from the cluster", "error", fault.Text(s.host.Removed()))
}

// suspicious reports whether this server may have been removed. It returns true if one of these conditions holds in a
// group that this server does not lead:
//
//   - No leader is known.
//   - The group has a tombstone of this server, that is, a record of its removal.
//   - This server is not a member.
func (s *removedCheck) suspicious() bool {
	self := s.host.Identity().Server
	for i, g := range s.host.Groups() {
		if g.Leading() {
			continue
		}
		st := s.host.Standing(uint32(i), self)
		if g.Leader() == "" || st.Removed || !st.Member {
			return true
		}
	}
	return false
}

// ask queries all other live servers concurrently. It reports whether one of them confirms that this server was
// removed.
func (s *removedCheck) ask(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, removedWait)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	out := false
	self := s.host.Identity().Server
	for _, m := range s.net.Gossip().Roster().Alive() {
		if m.Role != membership.Server || m.ServerID == self {
			continue
		}
		wg.Go(func() {
			b, err := s.net.Port().Client().Call(ctx, m.ServerID, methodRemovedCheck, nil)
			mu.Lock()
			defer mu.Unlock()
			out = out || err == nil && len(b) == 1 && b[0] == 1
		})
	}
	wg.Wait()
	return out
}

// serveRemovedCheck answers methodRemovedCheck about the caller.
func (ctl *Controller) serveRemovedCheck(_ context.Context, r peer.Request) ([]byte, error) {
	if err := ctl.host.Removed(); err != nil {
		return nil, err // this replica may be out of date
	}
	if !ctl.host.HasLeft(r.From.Server) {
		return []byte{0}, nil
	}
	return []byte{1}, nil
}
