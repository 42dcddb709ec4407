package group

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/integrity"
)

// watchLeadership handles changes of leadership until the group closes. A new leader must apply an entry of its term
// before it serves strong reads. watchLeadership waits for this and then marks the term as ready for reads.
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
			g.opts.Topics.Update()
			g.opts.Workflows.Update()
		case <-g.stop:
			return
		}
	}
}

// assertPause is the delay before a leader tries again to commit its barrier.
const assertPause = 20 * time.Millisecond

// assert prepares a new leader for strong reads: it commits a barrier in the new term, and then marks the term as
// ready. It retries until this succeeds, this server loses leadership, or the group closes.
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

// barrier commits a Raft barrier and waits until the machine has applied every earlier entry. It returns an error if
// this server loses leadership or if the group closes.
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

// announce sends the commit index of this leader to followers, which would otherwise learn it only from the next
// append. It runs until the group closes, and does nothing while no entries are replicated.
//
// Each acknowledgement by a follower causes a message after Timing.Announce. Raft may not have committed the
// acknowledged entry yet when this message is sent. Therefore applied entries cause a message too.
func (g *Group) announce() {
	acknowledged := g.guard.Moved()
	for {
		select {
		case <-acknowledged:
		case <-g.disk.role.advanced:
		case <-g.stop:
			return
		}
		select {
		case <-time.After(g.opts.Timing.Announce):
		case <-g.stop:
			return
		}
		acknowledged = g.guard.Moved()
		term := g.raft.CurrentTerm()
		commit := g.raft.CommitIndex()
		if g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term {
			g.guard.Announce(term, commit)
		}
	}
}

// watchElections registers a raft observer. The observer counts elections and leader changes, and reports each new
// leader to Server.NewLeader. The observer must not block, because raft's main goroutine calls it.
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
				if d.LeaderID != g.opts.ServerID { // the leader itself logs that it has acquired leadership
					g.opts.Logger.Info("the group has a new leader", "group", g.opts.ID, "leader",
						d.LeaderID, "term", g.raft.CurrentTerm())
				}
				g.opts.Server.NewLeader(d.LeaderID)
				g.changed.Fire()
			}
		}
		return false
	}))
	if leader := g.Leader(); leader != "" { // raft found this leader before the observer was registered
		g.noteLeader(leader)
	}
}

func (g *Group) noteLeader(leader raft.ServerID) {
	g.leaders.note(LeaderSeen{At: time.Now(), Leader: leader, Term: g.raft.CurrentTerm()})
}

// LeaderSeen is a leader of the group that this server has heard of.
type LeaderSeen struct {
	At     time.Time // when this server first heard of this leader
	Leader raft.ServerID
	Term   uint64
}

// keepLeaders is the maximum number of leaders that a leaderHistory stores.
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

// Transfer transfers leadership to the given voter, or to any other voter if voter is empty. It first waits until the
// voter has every entry, for at most one election timeout. Meanwhile, new proposals stay in the queue. Error codes:
//
//	conflict       the given server is not another voter, or no voter took over in time
//	not_leader     this server does not lead, or it is already transferring leadership
//	timeout        ctx has ended before the transfer began
//	indeterminate  leadership may be transferred: ctx has ended, the group is closing, or this server has lost
//	               leadership
//	unavailable    the group is closing, and the transfer has not begun
//
// Transfer does not rely on the raft library to wait for the voter. The wait of the library can block forever if the
// voter does not answer, and after two blocked transfers raft would refuse all writes.
func (g *Group) Transfer(ctx context.Context, voter raft.ServerID) error {
	if g.raft.State() == raft.Leader {
		defer g.proposer.pause()()
		var err error
		if voter, err = g.catchUp(ctx, voter); err != nil {
			return err
		}
	}
	if voter == "" {
		return g.change(ctx, "hand leadership over", g.raft.LeadershipTransfer())
	}
	return g.change(ctx, "hand leadership to "+string(voter), g.raft.LeadershipTransferToServer(voter,
		raft.ServerAddress(voter)))
}

// catchUp waits until the given voter has all entries of this leader, and returns the id of that voter. If voter is
// empty, catchUp waits until any other voter has all entries. If this server loses leadership, catchUp returns without
// an error, because the transfer itself then fails.
func (g *Group) catchUp(ctx context.Context, voter raft.ServerID) (raft.ServerID, error) {
	begun := time.Now()
	var able []raft.ServerID
	servers, _ := g.Servers()
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != g.opts.ServerID && (voter == "" || s.ID == voter) {
			able = append(able, s.ID)
		}
	}
	if len(able) == 0 && voter != "" { // raft would transfer to a non-voter, which can never be elected
		return "", g.cannotTransfer("it is no other voter", voter)
	}
	limit := time.NewTimer(g.opts.Timing.Election)
	defer limit.Stop()
	for len(able) > 0 && g.raft.State() == raft.Leader {
		moved, changed := g.guard.Moved(), g.changed.Wait()
		term, last := g.raft.CurrentTerm(), g.raft.LastIndex()
		for _, id := range able {
			if g.guard.UpTo(id, term, last, begun) {
				return id, nil
			}
		}
		select {
		case <-moved:
		case <-changed: // leadership may be lost
		case <-limit.C:
			return "", g.cannotTransfer("it did not get all entries within "+g.opts.Timing.Election.String(), voter)
		case <-ctx.Done():
			return "", &fault.Error{Code: fault.Timeout, Op: "group.Transfer",
				Msg: "the leadership transfer did not finish in time", Err: ctx.Err()}
		case <-g.stop:
			return "", errClosing()
		}
	}
	return voter, nil
}

func (g *Group) cannotTransfer(why string, voter raft.ServerID) error {
	return &fault.Error{Code: fault.Conflict, Op: "group.Transfer",
		Msg: fmt.Sprintf("group %d: cannot hand leadership to %s: %s", g.opts.ID,
			cmp.Or(string(voter), "any other voter"),
			why)}
}

// quickerFactor says how much faster the disk of the next leader must be. Its median write time must be at most
// 1/quickerFactor of the median on this leader's disk.
const quickerFactor = 3

// quicker returns the voter with the fastest disk, and the median duration of log writes on that disk. ownMedian is the
// median on this server's disk. quicker returns "" if no trusted voter has a disk at least quickerFactor times as fast.
func quicker(ownMedian time.Duration, answers []integrity.Answer) (to raft.ServerID, median time.Duration) {
	for _, a := range answers {
		r := a.Report
		if a.Err != nil || a.Server.Suffrage != raft.Voter || r.Doubted || r.Slow || r.Append == 0 ||
			r.Append*quickerFactor > ownMedian {
			continue
		}
		if to == "" || r.Append < median {
			to, median = a.Server.ID, r.Append
		}
	}
	return to, median
}

// relieve transfers leadership to a voter with a faster disk if the disk of this server is slow. It tries at most
// once per Timing.HandOver.
func (g *Group) relieve(now time.Time) {
	own, slow := g.disk.pace.State()
	g.obs.diskSlow.Set(boolFloat(slow))
	if !slow || !g.Leading() || g.Doubt() != nil || !g.relieved.IsZero() &&
		now.Sub(g.relieved) < g.opts.Timing.HandOver {
		return
	}
	g.relieved = now
	to, median := quicker(own, g.integrity.Ask(0))
	if to == "" {
		g.obs.handOverNone.Inc()
		g.opts.Logger.Warn("the disk is slow, and no other voter is known to have a faster one: leadership stays here",
			"group", g.opts.ID,
			"median_append", own, "bound", g.opts.Timing.SlowAppend, "dir", g.opts.Dir)
		return
	}
	g.opts.Logger.Warn("the disk is slow: leadership is transferred to a voter with a faster one", "group", g.opts.ID,
		"median_append", own, "bound", g.opts.Timing.SlowAppend, "dir", g.opts.Dir, "to", string(to),
		"its_median_append", median)
	if err := (follower{g}).HandOver(to); err != nil {
		g.obs.handOverFailed.Inc()
		g.opts.Logger.Warn("leadership transfer failed; it is tried again later", "group", g.opts.ID,
			"to", string(to), "error", err)
		return
	}
	g.obs.handOvers.Inc()
}

func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
