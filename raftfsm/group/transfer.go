package group

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// Transfer hands leadership to a voter; the zero id chooses one that has every entry. It
// first waits, for at most an election time-out, until the voter has everything, and lets
// proposals wait meanwhile; conflict if it does not get there.
//
// The wait is ours because raft's own can end badly: where a voter does not answer, each
// hand-over leaves a request behind in a channel of one slot, and the next one waits at that
// channel, with all writes of this server refused, for somebody who may have left for good
// (leadershipTransfer in raft.go; it must be asked only for a voter that needs no entry).
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
	return g.change(ctx, "hand leadership to "+string(to), g.raft.LeadershipTransferToServer(to, raft.ServerAddress(to)))
}

// level waits until to, or where it is zero any other voter, has all entries of this leader.
// Whom raft refuses anyway, and a leader that leads no more, is left to it.
func (g *Group) level(ctx context.Context, to raft.ServerID) (raft.ServerID, error) {
	var able []raft.ServerID
	servers, _ := g.Servers()
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != g.opts.ServerID && (to == "" || s.ID == to) {
			able = append(able, s.ID)
		}
	}
	limit := time.NewTimer(g.opts.Timing.Election)
	defer limit.Stop()
	for len(able) > 0 && g.raft.State() == raft.Leader {
		moved := g.guard.acked.moved.wait()
		term, last := g.raft.CurrentTerm(), g.raft.LastIndex()
		for _, id := range able {
			if g.guard.acked.has(id, term, last) {
				return id, nil
			}
		}
		select {
		case <-moved:
		case <-limit.C:
			whom := string(to)
			if whom == "" {
				whom = "any other voter"
			}
			return "", &fault.Error{Code: fault.Conflict, Op: "group.Transfer",
				Msg: fmt.Sprintf("group %d: cannot hand leadership to %s: it did not get all entries within %s", g.opts.ID, whom, g.opts.Timing.Election)}
		case <-ctx.Done():
			return "", &fault.Error{Code: fault.Timeout, Op: "group.Transfer", Msg: "leadership was not handed over in time", Err: ctx.Err()}
		case <-g.stop:
			return "", errClosing()
		}
	}
	return to, nil
}

// acked is how far the log of each follower is known to be that of this leader.
type acked struct {
	moved *signal

	mu   sync.Mutex
	upTo map[raft.ServerID]Position // the term is that of the leader who knows it
}

func newAcked() *acked { return &acked{moved: newSignal(), upTo: map[raft.ServerID]Position{}} }

func (a *acked) note(id raft.ServerID, term, index uint64) {
	a.mu.Lock()
	a.upTo[id] = Position{Term: term, Index: index}
	a.mu.Unlock()
	a.moved.fire()
}

func (a *acked) has(id raft.ServerID, term, index uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.upTo[id]
	return p.Term == term && p.Index >= index
}
