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

// methodLeaderChoice tells a server that an operator chose it as the next leader of a group.
const methodLeaderChoice = "cluster.hold"

// choiceTime is how long an operator's leadership transfer is kept before leadership may move to balance the leaders.
const choiceTime = 10 * time.Minute

// leaderChoice records that an operator has chosen the leader of a group. The record is dropped after choiceTime,
// when the leader loses leadership, or when the members of the group change.
type leaderChoice struct {
	until   time.Time
	members uint64 // index of the configuration it was made under
	led     bool   // this node has led the group since the choice; only then a loss of leadership ends the choice
}

// announceChoice tells the next leader of a group that an operator has chosen it, so that it keeps leadership. If the
// next leader is not known yet, announceChoice tells every voter. Failures are only logged: at worst, leadership is
// moved again later.
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

// choose records that an operator has chosen this node as leader of a group. It waits for a running spread, so that
// no earlier decision of spread moves the leader again.
func (r *reconciler) choose(id int) {
	r.moving.Lock()
	defer r.moving.Unlock()
	g := r.host.Groups()[id]
	_, members := g.Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choices[id] = leaderChoice{until: r.now().Add(choiceTime), members: members, led: g.Leading()}
}

// isChosen reports whether an operator has chosen this node as leader of a group. In that case, spread must not move
// leadership to another node.
func (r *reconciler) isChosen(id int) bool {
	_, members := r.host.Groups()[id].Servers()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.choices[id]
	return r.now().Before(h.until) && h.members == members
}

// noteLeading records whether this node leads a group. When the node loses leadership that it had after the
// operator's choice, the choice ends. The caller has locked mu.
func (r *reconciler) noteLeading(id uint32, leading bool) {
	switch h := &r.choices[id]; {
	case leading:
		h.led = true
	case h.led:
		*h = leaderChoice{}
	}
}
