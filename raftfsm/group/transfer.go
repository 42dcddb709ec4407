package group

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/integrity"
)

// Transfer transfers leadership to another voter. The parameter to is the id of that voter; if it is empty, Transfer
// chooses the voter. Transfer first waits until the voter has every entry, for at most one election timeout; new
// proposals wait in the meantime. It returns fault.Conflict if the given server is not another voter, or if the voter
// does not catch up in time.
//
// Transfer does not use the corresponding wait of the raft library. That wait can block forever if the voter does not
// answer, because two unanswered transfers fill an internal channel, and raft then refuses all writes.
func (g *Group) Transfer(ctx context.Context, to raft.ServerID) error {
	if g.raft.State() == raft.Leader {
		defer g.proposer.pause()()
		var err error
		if to, err = g.level(ctx, to); err != nil {
			return err
		}
	}
	if to == "" {
		return g.change(ctx, "hand leadership over", g.raft.LeadershipTransfer())
	}
	return g.change(ctx, "hand leadership to "+string(to), g.raft.LeadershipTransferToServer(to,
		raft.ServerAddress(to)))
}

// level waits until a voter has all entries of this leader, and returns the id of that voter. If the parameter to is
// empty, any other voter will do. If this server loses leadership, level returns no error, because the transfer that
// follows reports this.
func (g *Group) level(ctx context.Context, to raft.ServerID) (raft.ServerID, error) {
	begun := time.Now()
	var able []raft.ServerID
	servers, _ := g.Servers()
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != g.opts.ServerID && (to == "" || s.ID == to) {
			able = append(able, s.ID)
		}
	}
	if len(able) == 0 && to != "" { // raft would transfer to a non-voter, which can never be elected
		return "", g.cannotTransfer("it is no other voter", to)
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
			return "", g.cannotTransfer("it did not get all entries within "+g.opts.Timing.Election.String(), to)
		case <-ctx.Done():
			return "", &fault.Error{Code: fault.Timeout, Op: "group.Transfer",
				Msg: "the leadership transfer did not finish in time", Err: ctx.Err()}
		case <-g.stop:
			return "", errClosing()
		}
	}
	return to, nil
}

func (g *Group) cannotTransfer(why string, to raft.ServerID) error {
	return &fault.Error{Code: fault.Conflict, Op: "group.Transfer",
		Msg: fmt.Sprintf("group %d: cannot hand leadership to %s: %s", g.opts.ID, cmp.Or(string(to), "any other voter"),
			why)}
}

// quickerFactor is how many times faster the disk of the next leader must be.
const quickerFactor = 3

// quicker returns the voter with the fastest disk, and the median duration of its log writes. The parameter own is the
// median of this server. quicker returns "" if no voter is at least quickerFactor times as fast as this server.
func quicker(own time.Duration, answers []integrity.Answer) (to raft.ServerID, median time.Duration) {
	for _, a := range answers {
		r := a.Report
		if a.Err != nil || a.Server.Suffrage != raft.Voter || r.Doubted || r.Slow || r.Append == 0 ||
			r.Append*quickerFactor > own {
			continue
		}
		if to == "" || r.Append < median {
			to, median = a.Server.ID, r.Append
		}
	}
	return to, median
}

// relieve transfers leadership if the disk of this server is slow and another voter has a faster disk. It tries at
// most once per Timing.HandOver.
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
