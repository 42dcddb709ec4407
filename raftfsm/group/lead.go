package group

import (
	"time"

	"github.com/hashicorp/raft"
)

// watchLeadership handles changes of leadership until the group closes. When this server becomes leader, it waits
// until the machine has applied an entry of the new term. It then marks the term as ready for reads.
func (g *Group) watchLeadership() {
	defer g.wg.Done()
	for {
		select {
		case leads := <-g.raft.LeaderCh():
			if leads {
				g.obs.gained.Inc()
				g.assert()
			} else {
				g.obs.lost.Inc()
				g.opts.Logger.Info("leadership lost", "group", g.opts.ID, "term", g.raft.CurrentTerm())
				g.proposer.rouse() // queued proposals are refused
			}
			g.changed.Fire()
			g.opts.Locks.Update()
			g.opts.Due.Update()
		case <-g.stop:
			return
		}
	}
}

// assertPause is the delay before a leader tries again to commit its barrier.
const assertPause = 20 * time.Millisecond

// assert commits a barrier in the new term and then declares the term ready.
func (g *Group) assert() {
	term := g.raft.CurrentTerm()
	for g.barrier() != nil {
		// Raft refuses a barrier during a leadership transfer. If the transfer fails, this server stays leader
		// without a notification, so try again. If it succeeds, the next leadership change ends the loop.
		select {
		case <-time.After(assertPause):
		case <-g.stop:
			return
		}
		if g.raft.CurrentTerm() != term || g.raft.State() != raft.Leader {
			return
		}
	}
	if g.raft.CurrentTerm() != term || g.raft.State() != raft.Leader {
		return
	}
	g.disk.role.alone.Store(g.lone())
	g.readyTerm.Store(term)
	g.caughtUp.Store(true)
	g.opts.Logger.Info("leadership acquired", "group", g.opts.ID, "term", term, "commit_index", g.raft.CommitIndex())
}

// barrier commits a Raft barrier and waits until the machine has applied every earlier entry. It returns an error when
// the group closes, because raft may never answer a barrier during a shutdown.
func (g *Group) barrier() error {
	done := make(chan error, 1)
	go func() { done <- g.raft.Barrier(0).Error() }()
	select {
	case err := <-done:
		return err
	case <-g.stop:
		return errClosing()
	}
}

// watchElections registers an observer that counts elections and leader changes, and records and reports each new
// leader. The observer must not block, because raft's main goroutine calls it.
func (g *Group) watchElections() {
	g.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch d := o.Data.(type) {
		case raft.RaftState:
			if d == raft.Candidate {
				g.obs.elections.Inc()
			}
		case raft.LeaderObservation:
			if d.LeaderID != "" {
				g.obs.leaders.Inc()
				g.noteLeader(d.LeaderID)
				g.opts.Server.NewLeader(d.LeaderID)
				g.changed.Fire()
			}
		}
		return false
	}))
	if leader := g.Leader(); leader != "" { // it was found before the observer was registered
		g.noteLeader(leader)
	}
}

func (g *Group) noteLeader(leader raft.ServerID) {
	g.leaders.note(LeaderSeen{At: time.Now(), Leader: leader, Term: g.raft.CurrentTerm()})
}
