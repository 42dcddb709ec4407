package group

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// LeaderSeen is a leader of the group that this server has heard of.
type LeaderSeen struct {
	At     time.Time // when this server first heard of it
	Leader raft.ServerID
	Term   uint64
}

// keepLeaders bounds the leaders that a group remembers.
const keepLeaders = 10

// leaderHistory stores the most recent leaders of a group, at most one per term. It is safe for concurrent use.
type leaderHistory struct {
	mu   sync.Mutex
	list []LeaderSeen // oldest first
}

func (h *leaderHistory) note(one LeaderSeen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.list); n > 0 && h.list[n-1].Term >= one.Term {
		return
	}
	if len(h.list) == keepLeaders {
		h.list = slices.Delete(h.list, 0, 1)
	}
	h.list = append(h.list, one)
}

// Leaders returns the most recent leaders that this server has learned of since it started, oldest first.
func (g *Group) Leaders() []LeaderSeen {
	g.leaders.mu.Lock()
	defer g.leaders.mu.Unlock()
	return slices.Clone(g.leaders.list)
}
