package group

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Replicas asks the other servers of a group about their state. Errors: any; a server that
// does not answer, or does not know the question, has no say.
type Replicas interface {
	// Compare asks for the server's digest at index, and how it fares.
	Compare(ctx context.Context, server raft.Server, index uint64) (Report, error)
	// AskState asks the server to send its state to this one (see Group.AnswerState).
	AskState(ctx context.Context, server raft.Server, ask StateRequest) error
}

// Report is what a server tells of itself.
type Report struct {
	Marked  bool // Digest is known, and that of a state that the server trusts, or that is only split from others'
	Digest  kv.Digest
	Doubted bool          // the server has taken itself out
	Slow    bool          // its disk is slow
	Append  time.Duration // median time of its newest appends; 0 = not known
}

// AnswerCompare answers another server's question.
func (g *Group) AnswerCompare(index uint64) Report {
	var r Report
	// The machine first: were it replaced after the doubt was read, the marks of the wrong one could be told.
	m := g.Machine()
	d := g.Doubt()
	r.Doubted = d != nil
	if !d.replaceable() && m == g.Machine() {
		for _, mark := range m.Marks() {
			if mark.Index == index {
				r.Marked, r.Digest = true, mark.Digest
			}
		}
	}
	r.Append, r.Slow = g.disk.pace.state()
	return r
}

// answer is what became of a question to a server.
type answer struct {
	server raft.Server
	report Report
	err    error
}

// ask asks all other servers of the group at a time.
func (g *Group) ask(index uint64) []answer {
	var others []answer
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.ID != g.opts.ServerID {
			others = append(others, answer{server: s})
		}
	}
	if g.opts.Replicas == nil {
		return nil
	}
	ctx, cancel := g.bounded(g.opts.Timing.ReadRound)
	defer cancel()
	var wg sync.WaitGroup
	for i := range others {
		a := &others[i]
		wg.Go(func() { a.report, a.err = g.opts.Replicas.Compare(ctx, a.server, index) })
	}
	wg.Wait()
	return others
}

// bounded is a context that ends after d, or when the group closes.
func (g *Group) bounded(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(g.closing, d)
}

// outcome of a comparison.
type finding uint8

const (
	undecided finding = iota
	agrees            // a majority of the voters has this state
	outvoted          // a majority of the voters has another one
	split             // voters differ, and no state has a majority as far as is known
)

// compared weighs the digest of this server against the answers of others. Voters alone
// count, each once, out of all voters and not of those that answered: what a majority has
// applied to one state is the state of the group, for two majorities share a voter. A leader
// counts like any other.
func compared(own kv.Digest, voter bool, answers []answer) (f finding, other kv.Digest) {
	count, voters := map[kv.Digest]int{}, 0
	if voter {
		voters, count[own] = 1, 1
	}
	for _, a := range answers {
		if a.server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if a.err == nil && a.report.Marked {
			count[a.report.Digest]++
		}
	}
	for d, n := range count {
		if n > voters/2 {
			if d == own {
				return agrees, d
			}
			return outvoted, d
		}
	}
	for d := range count {
		if d != own {
			f, other = split, d
		}
	}
	return f, other
}

// compareTries is how often the others are asked about one mark before it is given up, or
// before voters that differ without a majority are taken for split: some may be behind.
const compareTries = 10

// sumSoon is when a database that was written before there were sums is read to get its own.
const sumSoon = 10 * time.Second

// watchState compares the state of this server with that of others, replaces it when it is
// wrong, and hands leadership over when the disk is slow. One goroutine; transfers of state
// to others have their own.
func (g *Group) watchState() {
	defer g.wg.Done()
	t := g.opts.Timing
	look, compare := time.NewTicker(t.SlowLook), time.NewTicker(min(max(t.Compare/compareTries, time.Millisecond), time.Second))
	defer look.Stop()
	defer compare.Stop()
	first := t.FirstVerify
	if !g.Machine().Summed() {
		first = min(first, sumSoon)
	}
	verify := time.NewTimer(first)
	defer verify.Stop()
	for {
		select {
		case now := <-look.C:
			g.disk.pace.look(g.disk.logs.stalled())
			g.relieve(now)
		case <-compare.C:
			g.markDue()
			g.compare()
			g.standDown()
			g.reinstall()
		case <-verify.C:
			g.verifyBeside()
			verify.Reset(t.Verify)
		case <-g.disk.fsm.received:
			verify.Reset(0) // what a leader sent is looked at as a whole
		case <-g.stop:
			return
		}
	}
}

// markDue makes the log move time on, so that all servers note their digests at one entry.
func (g *Group) markDue() {
	if g.opts.Replicas == nil || !g.Leading() || len(g.raft.GetConfiguration().Configuration().Servers) < 2 {
		return
	}
	m, now, period := g.Machine(), g.clock.leader(), g.markPeriod()
	// While voters are split there must be new marks, also if nothing is written.
	if !m.MarkDue(now) && (g.Doubt() == nil || m.Clock()/period == now/period) {
		return
	}
	ctx, cancel := g.bounded(g.opts.Timing.ReadRound)
	defer cancel()
	_, err := g.proposeOwn(ctx, &command.Request{Kind: command.KindTick}, Committed)
	if err != nil && !fault.Is(err, fault.NotLeader) && ctx.Err() == nil {
		g.opts.Logger.Debug("no entry to compare states at; the next round tries again", "group", g.opts.ID, "error", err)
	}
}

func (g *Group) markPeriod() uint64 { return markPeriod(g.opts.Timing.Compare) }

func markPeriod(d time.Duration) uint64 { return uint64(max(d.Milliseconds(), 1)) } //nolint:gosec // positive

// compare takes the oldest mark that was not compared yet.
func (g *Group) compare() {
	m := g.Machine()
	mark, ok := g.comparing.next(m)
	if !ok || g.opts.Replicas == nil || g.Doubt().replaceable() {
		return
	}
	_, voter := g.reader.voters()
	answers := g.ask(mark.Index)
	if len(answers) == 0 {
		g.comparing.done(mark.Index)
		return
	}
	f, other := compared(mark.Digest, voter, answers)
	g.comparing.tries++
	last := g.comparing.tries >= compareTries
	switch {
	case f == agrees:
		g.obs.comparedSame.Inc()
		g.trust(m, mark.Index)
	case f == outvoted:
		g.distrust(m, &Doubt{Cause: Differs, Index: mark.Index, Own: digestText(mark.Digest), Other: digestText(other)})
	case f == split && last:
		g.distrust(m, &Doubt{Cause: Split, Index: mark.Index, Own: digestText(mark.Digest), Other: digestText(other)})
	case last:
		g.obs.comparedNot.Inc()
	default:
		return // again at the next tick: others may be behind, or out of reach for a moment
	}
	g.comparing.done(mark.Index)
}

// comparing is how far the comparison has got. It belongs to watchState.
type comparing struct {
	of    *kv.Machine
	index uint64 // marks up to here were compared
	tries int    // with the next one
}

// next returns the oldest mark that was not compared.
func (c *comparing) next(m *kv.Machine) (kv.Mark, bool) {
	if c.of != m {
		*c = comparing{of: m}
	}
	for _, mark := range m.Marks() {
		if mark.Index > c.index {
			return mark, true
		}
	}
	return kv.Mark{}, false
}

func (c *comparing) done(index uint64) { c.index, c.tries = index, 0 }

// standDown gives leadership up as long as this server's state is in doubt: a leader's
// machine decides what clients are told. Where voters are split nobody is better.
func (g *Group) standDown() {
	if !g.Doubt().replaceable() || g.raft.State() != raft.Leader {
		return
	}
	for _, a := range g.ask(0) {
		if a.err != nil || a.server.Suffrage != raft.Voter || a.report.Doubted {
			continue
		}
		err := g.handOver(a.server.ID)
		if err == nil {
			g.opts.Logger.Warn("leadership was handed over, for the state of this replica is in doubt", "group", g.opts.ID, "to", string(a.server.ID))
			return
		}
		g.opts.Logger.Warn("leadership could not be handed over; it is tried again", "group", g.opts.ID, "to", string(a.server.ID), "error", err)
	}
}

// handOver transfers leadership to a voter.
func (g *Group) handOver(to raft.ServerID) error {
	ctx, cancel := g.bounded(g.opts.Timing.StallFatal)
	defer cancel()
	return g.Transfer(ctx, to)
}

// verifyRate bounds how fast a background check reads, in bytes per second: it must not
// take the disk away from writes.
const verifyRate = 32 << 20

// verifyBeside reads all records beside everything else, unless that is under way.
func (g *Group) verifyBeside() {
	if g.verifying.Swap(true) {
		return
	}
	g.wg.Go(func() { // watchState is counted, so Close cannot have begun to wait for the last one
		defer g.verifying.Store(false)
		g.verify()
	})
}

// verify compares the stored records with what was applied.
func (g *Group) verify() {
	m := g.Machine()
	v, err := m.Verify(func(bytes int) error {
		t := time.NewTimer(time.Duration(bytes) * time.Second / verifyRate)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-g.stop:
			return errClosing()
		}
	})
	switch {
	case fault.Is(err, fault.Unavailable):
		return // closing, or replaced
	case err != nil:
		g.obs.verified("failed").Inc()
		g.opts.Logger.Error("the stored records cannot be checked", "group", g.opts.ID, "error", err)
		return
	case v.Wrong == "":
		g.obs.verified("ok").Inc()
		g.damaged.Store(false)
		return
	}
	g.obs.verified("wrong").Inc()
	g.damaged.Store(true)
	if len(g.ask(0)) == 0 {
		// There is no other copy: to refuse everything would mend nothing, and a restore needs a server that runs.
		g.opts.Logger.Error("stored records are not what was applied, and no other server holds a copy: restore a backup; until then damaged values may be served",
			"group", g.opts.ID, "index", v.Applied, "why", v.Wrong)
		return
	}
	g.distrust(m, &Doubt{Cause: Damaged, Index: v.Applied, Why: v.Wrong})
}
