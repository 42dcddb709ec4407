package clusterctl

import (
	"time"

	"github.com/quorate/quorate/internal/fault"
)

const (
	// quorumGrace is how long a group may be without a leader before an error is logged. It is longer than a normal
	// election.
	quorumGrace = 3 * time.Second
	// quorumStartGrace is used instead of quorumGrace until the group has its first leader after the start of this
	// node. It is longer than quorumGrace, because the other servers may be starting too.
	quorumStartGrace = 30 * time.Second
	quorumRepeat     = time.Minute // between errors about one group
)

// quorumWatch logs an error with the reason when a group has no leader for too long. It also logs when the group has a
// leader again.
type quorumWatch struct {
	parts
	groups map[uint32]*leaderless
}

// leaderless describes a group for quorumWatch.
type leaderless struct {
	had    bool      // the group has had a leader since the start of this node
	since  time.Time // when the leader was first missing; zero = there is a leader
	logged time.Time // when the last error was logged; zero = none was logged after since
}

func newQuorumWatch(p parts) *quorumWatch {
	return &quorumWatch{parts: p, groups: map[uint32]*leaderless{}}
}

// run looks at every group once.
func (w *quorumWatch) run() {
	if w.host.Removed() != nil {
		return // a removed server has no part in the groups
	}
	for id := range w.host.Partitions() {
		g := w.groups[id]
		if g == nil {
			g = &leaderless{}
			w.groups[id] = g
		}
		if w.host.Leader(id) != "" {
			w.found(id, g)
		} else {
			w.missing(id, g)
		}
	}
}

func (w *quorumWatch) found(id uint32, g *leaderless) {
	if !g.logged.IsZero() {
		w.log.Info("the group has a leader again", "group", id, "leader", w.host.Leader(id), "after",
			w.now().Sub(g.since).Round(time.Millisecond))
	}
	*g = leaderless{had: true}
}

func (w *quorumWatch) missing(id uint32, g *leaderless) {
	now := w.now()
	if g.since.IsZero() {
		g.since = now
	}
	grace := quorumGrace
	if !g.had {
		grace = quorumStartGrace
	}
	if now.Sub(g.since) < grace || !g.logged.IsZero() && now.Sub(g.logged) < quorumRepeat {
		return
	}
	err, ok := fault.As(w.host.Ready(id))
	if !ok || w.host.Leader(id) != "" {
		return // the group has a leader again
	}
	g.logged = now
	w.log.Error(err.Msg, "group", id, "since", g.since.UTC().Format(time.RFC3339), "hint", err.Hint)
}
