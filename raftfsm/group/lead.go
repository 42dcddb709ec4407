package group

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// watchLeadership notes, for every term this server leads, when it has applied an entry
// of that term: only then does its commit index cover what earlier leaders acknowledged.
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
				g.proposer.rouse() // what waits there is refused
			}
			g.changed.fire()
		case <-g.stop:
			return
		}
	}
}

// assertPause is how long a leader waits before it tries again to commit its barrier.
const assertPause = 20 * time.Millisecond

// assert commits a barrier in the new term and then declares the term ready.
func (g *Group) assert() {
	term := g.raft.CurrentTerm()
	for g.barrier() != nil {
		// Refused while leadership is being handed over: if that fails, this server goes on
		// leading and nothing would tell. Otherwise the next change does.
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
	g.alone.Store(g.lone())
	g.readyTerm.Store(term)
	g.caughtUp.Store(true)
	g.opts.Logger.Info("leading", "group", g.opts.ID, "term", term, "commit_index", g.raft.CommitIndex())
}

// barrier waits until the machine has taken everything before it. raft may never settle
// it when it is shut down at that moment, so Close does not wait for it.
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

// known answers a heartbeat from atomics: the last log index, if term and leader are the
// ones this follower knows.
func (g *Group) known(term uint64, leader raft.ServerID) (uint64, bool) {
	if g.raft.State() != raft.Follower || g.raft.CurrentTerm() != term {
		return 0, false
	}
	_, id := g.raft.LeaderWithID()
	return g.raft.LastIndex(), id == leader
}

// hear notes the commit index that the leader of term announced, until this server has
// caught up. Called from the guard's goroutine only.
func (g *Group) hear(term, commit uint64) {
	if commit == 0 || g.caughtUp.Load() || term < g.raft.CurrentTerm() {
		return
	}
	g.heard.Store(&Position{Term: term, Index: commit})
}

// base tells raft's follower where the newest snapshot ends.
func (g *Group) base() (Position, bool) {
	return g.disk.snaps.position(), g.raft.State() != raft.Leader
}

// wantSnapshot makes the keeper take a snapshot soon.
func (g *Group) wantSnapshot() {
	select {
	case g.refresh <- struct{}{}:
	default:
	}
}

// judge says what becomes of a snapshot that a leader sends. Raft itself would install
// it, clear the log, and still believe that the log ends where it ended: it breaks, or
// asks for the snapshot for ever, if that is not below the snapshot.
func (g *Group) judge(r *raft.InstallSnapshotRequest) verdict {
	var l raft.Log
	switch err := g.disk.logs.GetLog(r.LastLogIndex, &l); {
	case r.Term < g.raft.CurrentTerm():
		return install // raft refuses it
	case err == nil && l.Term == r.LastLogTerm && g.disk.logs.unsynced.wait(r.LastLogIndex) == nil:
		return had // on the disk, too; and raft will find the entry when the leader goes on from there
	case r.LastLogIndex > g.disk.snaps.index():
		return install
	default:
		return outdated
	}
}

// signal wakes everybody who waits for a change.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// wait returns a channel that is closed at the next fire.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}
