package node

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

// methodHold tells a server that leadership of a group, which it is about to get, is an
// operator's choice.
const methodHold = "cluster.hold"

// holdTime is how long leaders are not spread away from where an operator put them.
const holdTime = 10 * time.Minute

// hold is an operator's choice of a leader. It ends after holdTime, when leadership is
// lost, or when the members of the group change.
type hold struct {
	until   time.Time
	members uint64 // index of the configuration it was made under
	led     bool   // leadership was seen here since; its loss before that is not the end
}

// announceHold tells the next leader of a group, or, where that is not chosen yet, every
// voter that may be it, to keep the group. Without the news the group may be moved again a
// little later, which harms nobody: so failures are only logged.
func (n *Node) announceHold(ctx context.Context, gid uint64, servers []raft.Server, target raft.ServerID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		if string(s.ID) == n.host.Identity().Server || s.Suffrage != raft.Voter || target != "" && s.ID != target {
			continue
		}
		wg.Go(func() {
			if _, err := n.port.Client().Call(ctx, string(s.ID), methodHold, binary.AppendUvarint(nil, gid)); err != nil {
				n.log.Info("a voter was not told that leadership goes where an operator wants it; it may be spread again soon", "group", gid, "server", string(s.ID), "error", err)
			}
		})
	}
	wg.Wait()
}

// serveHold answers methodHold.
func (n *Node) serveHold(_ context.Context, r peer.Request) ([]byte, error) {
	id, k := binary.Uvarint(r.Payload)
	if k <= 0 || id >= uint64(len(n.host.Groups())) {
		return nil, fault.New(fault.Invalid, "node.hold", "the group cannot be read")
	}
	n.reconciler.hold(int(id)) //nolint:gosec // bounded above
	return nil, nil
}

// hold notes that an operator wants this node to lead a group. It waits for the end of what
// spreading has begun, so that nothing decided before the choice is done after it.
func (r *reconciler) hold(id int) {
	r.moving.Lock()
	defer r.moving.Unlock()
	g := r.node.host.Groups()[id]
	_, members := g.Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds[id] = hold{until: r.node.deps.Now().Add(holdTime), members: members, led: g.Leading()}
}

// held reports whether a group stays where it is, whatever spreading would do.
func (r *reconciler) held(id int) bool {
	_, members := r.node.host.Groups()[id].Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.holds[id]
	return r.node.deps.Now().Before(h.until) && h.members == members
}

// led notes whether this node leads a group now, which ends a hold once leadership is lost.
// The choice may come while the loss of an earlier leadership was not seen yet. The caller
// holds mu.
func (r *reconciler) led(id uint32, leading bool) {
	switch h := &r.holds[id]; {
	case leading:
		h.led = true
	case h.led:
		*h = hold{}
	}
}
