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

// methodLeaderChoice is the peer method that notifies a server that an operator has chosen it as the next leader of a
// group.
const methodLeaderChoice = "cluster.hold"

// choiceTime is how long a leader that an operator has chosen is exempt from the balancing of leaders.
const choiceTime = 10 * time.Minute

// leaderChoice records that an operator has chosen this node as the leader of a group. The choice ends after
// choiceTime, when the node loses leadership, or when the members of the group change.
type leaderChoice struct {
	until   time.Time
	members uint64 // log index of the group's configuration at the time of the choice
	// this node has led the group since the choice; only then does a loss of leadership end the choice
	led bool
}

// announceChoice notifies the next leader of a group that an operator has chosen it. Otherwise the balancing of
// leaders could soon move leadership to another server. If target is empty, the next leader is unknown, and
// announceChoice notifies every other voter. Failures are only logged.
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

// choose records that an operator has chosen this node as leader of a group. If the balancing of leaders is running,
// choose first waits until it has ended, because the balancing could still move this leadership.
func (r *reconciler) choose(id int) {
	r.moving.Lock()
	defer r.moving.Unlock()
	g := r.host.Groups()[id]
	_, members := g.Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choices[id] = leaderChoice{until: r.now().Add(choiceTime), members: members, led: g.Leading()}
}

// isChosen reports whether an operator has chosen this node as leader of a group. The balancing of leaders then must
// not move this leadership.
func (r *reconciler) isChosen(id int) bool {
	_, members := r.host.Groups()[id].Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.choices[id]
	return r.now().Before(h.until) && h.members == members
}

// noteLeading records whether this node leads a group. A choice of this node by an operator ends when the node has
// led the group and then loses leadership. The caller holds mu.
func (r *reconciler) noteLeading(id uint32, leading bool) {
	switch h := &r.choices[id]; {
	case leading:
		h.led = true
	case h.led:
		*h = leaderChoice{}
	}
}
