package clusterctl

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

// methodLeaderChoice is the peer method that notifies a server that an operator has chosen it as the leader of a group.
const methodLeaderChoice = "cluster.hold"

// choiceTime is the minimum time before the balancing of leaders replaces a leader that an operator has chosen.
const choiceTime = 10 * time.Minute

// leaderChoice records that an operator has chosen this node as the leader of a group. It expires after choiceTime. It
// ends earlier if the members of the group change, or if this node becomes the leader and then loses leadership.
type leaderChoice struct {
	until   time.Time
	members uint64 // log index of the group's configuration at the time of the choice
	// this node has led the group since the choice; only then does a loss of leadership end the choice
	led bool
}

// announceChoice notifies a server that an operator has chosen it as the next leader of a group, so that the balancing
// of leaders does not replace it soon. If target is empty, Raft chooses the next leader, and all other voters are
// notified. Failures are only logged.
func (ctl *Controller) announceChoice(ctx context.Context, gid uint64, servers []raft.Server, target raft.ServerID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		if string(s.ID) == ctl.host.Identity().Server || s.Suffrage != raft.Voter || target != "" && s.ID != target {
			continue
		}
		wg.Go(func() {
			if _, err := ctl.net.Port().Client().Call(ctx, string(s.ID), methodLeaderChoice,
				binary.AppendUvarint(nil, gid)); err != nil {
				ctl.log.Info("a voter did not receive the operator's choice of a leader; leadership may be "+
					"spread again soon", "group", gid, "server", string(s.ID), "error", err)
			}
		})
	}
	wg.Wait()
}

// serveLeaderChoice answers methodLeaderChoice.
func (ctl *Controller) serveLeaderChoice(_ context.Context, r peer.Request) ([]byte, error) {
	id, k := binary.Uvarint(r.Payload)
	if k <= 0 || id >= uint64(len(ctl.host.Groups())) {
		return nil, fault.New(fault.Invalid, "node.hold", "the group cannot be read")
	}
	ctl.reconciler.choose(int(id)) //nolint:gosec // bounded above
	return nil, nil
}

// choose records that an operator has chosen this node as the leader of a group. It first waits until any balancing in
// progress has ended, because the balancing could still move the leadership of this group.
func (r *reconciler) choose(id int) {
	r.moving.Lock()
	defer r.moving.Unlock()
	g := r.host.Groups()[id]
	_, members := g.Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choices[id] = leaderChoice{until: r.now().Add(choiceTime), members: members, led: g.Leading()}
}

// isChosen reports whether an operator has chosen this node as the leader of a group, and that choice is still valid.
// The balancing of leaders must not move the leadership of such a group.
func (r *reconciler) isChosen(id int) bool {
	_, members := r.host.Groups()[id].Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.choices[id]
	return r.now().Before(h.until) && h.members == members
}

// noteLeading records whether this node leads a group now. If an operator has chosen this node, the choice ends when
// this node has led the group and loses leadership. The caller must hold mu.
func (r *reconciler) noteLeading(id uint32, leading bool) {
	switch h := &r.choices[id]; {
	case leading:
		h.led = true
	case h.led:
		*h = leaderChoice{}
	}
}
