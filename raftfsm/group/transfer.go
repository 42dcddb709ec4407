package group

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// Transfer hands leadership to a voter; the zero id chooses one that has every entry. It
// first waits, for at most an election time-out, until the voter has said that it has
// everything, and lets proposals wait meanwhile; conflict if it does not get there.
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

// level waits until to, or where it is zero any other voter, says that it has all entries of
// this leader. A leader that leads no more is left to raft, which says so.
func (g *Group) level(ctx context.Context, to raft.ServerID) (raft.ServerID, error) {
	begun := time.Now()
	var able []raft.ServerID
	servers, _ := g.Servers()
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != g.opts.ServerID && (to == "" || s.ID == to) {
			able = append(able, s.ID)
		}
	}
	if len(able) == 0 && to != "" { // raft would hand it to a replica, which nobody elects
		return "", g.cannotTransfer("it is no other voter", to)
	}
	limit := time.NewTimer(g.opts.Timing.Election)
	defer limit.Stop()
	for len(able) > 0 && g.raft.State() == raft.Leader {
		moved, changed := g.guard.acked.moved.wait(), g.changed.wait()
		term, last := g.raft.CurrentTerm(), g.raft.LastIndex()
		for _, id := range able {
			if g.guard.acked.has(id, term, last, begun) {
				return id, nil
			}
		}
		select {
		case <-moved:
		case <-changed: // leadership may be lost
		case <-limit.C:
			return "", g.cannotTransfer("it did not get all entries within "+g.opts.Timing.Election.String(), to)
		case <-ctx.Done():
			return "", &fault.Error{Code: fault.Timeout, Op: "group.Transfer", Msg: "leadership was not handed over in time", Err: ctx.Err()}
		case <-g.stop:
			return "", errClosing()
		}
	}
	return to, nil
}

func (g *Group) cannotTransfer(why string, to raft.ServerID) error {
	return &fault.Error{Code: fault.Conflict, Op: "group.Transfer",
		Msg: fmt.Sprintf("group %d: cannot hand leadership to %s: %s", g.opts.ID, cmp.Or(string(to), "any other voter"), why)}
}

// acked is how far the log of each follower is known to be that of this leader.
type acked struct {
	moved *signal

	mu   sync.Mutex
	upTo map[raft.ServerID]ack
}

// ack is what a follower said to the leader of a term.
type ack struct {
	Position
	at time.Time
}

func newAcked() *acked { return &acked{moved: newSignal(), upTo: map[raft.ServerID]ack{}} }

func (a *acked) note(id raft.ServerID, term, index uint64) {
	a.mu.Lock()
	a.upTo[id] = ack{Position{Term: term, Index: index}, time.Now()}
	a.mu.Unlock()
	a.moved.fire()
}

// has reports whether id has said, not before since, that it has the entries up to index.
func (a *acked) has(id raft.ServerID, term, index uint64, since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.upTo[id]
	return p.Term == term && p.Index >= index && !p.at.Before(since)
}
