package group

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	paceSamples = 256 // appends of one look; more are spread over it
	paceLooks   = 10  // looks in a row that make a disk slow, or well again
	paceFactor  = 3   // how many times faster the disk of the next leader must be
)

// pace watches how long appends to the log take. A disk is slow once the median of the
// appends between two looks was above the bound in paceLooks looks in a row, and well again
// once it was below half of it as often. Looks that saw no append change nothing.
//
// The median and not the mean or a high quantile: a flush of the database or a burst makes
// some appends slow on every disk; when half of them are, clients wait.
type pace struct {
	bound time.Duration

	mu     sync.Mutex
	window []time.Duration // guarded by mu: since the last look
	seen   int             // guarded by mu: appends since the last look
	median time.Duration   // guarded by mu: of the newest look that saw any; 0 = none yet
	streak int             // guarded by mu: looks above the bound in a row, or, negative, below half of it
	slow   bool            // guarded by mu
}

// add notes an append.
func (p *pace) add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.window) < paceSamples {
		p.window = append(p.window, d)
	} else {
		p.window[p.seen%paceSamples] = d
	}
	p.seen++
}

// look ends a window. inFlight is how long the append that goes on now has taken so far.
func (p *pace) look(inFlight time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if inFlight > p.bound {
		p.window = append(p.window, inFlight)
	}
	if len(p.window) == 0 {
		return
	}
	slices.Sort(p.window)
	p.median = p.window[len(p.window)/2]
	p.window, p.seen = p.window[:0], 0
	switch {
	case p.median > p.bound:
		p.streak = max(p.streak, 0) + 1
	case p.median < p.bound/2:
		p.streak = min(p.streak, 0) - 1
	default:
		p.streak = 0
	}
	if p.streak >= paceLooks {
		p.slow = true
	}
	if p.streak <= -paceLooks {
		p.slow = false
	}
}

// state returns the newest median and whether the disk is slow.
func (p *pace) state() (median time.Duration, slow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.median, p.slow
}

// quicker chooses the voter to hand leadership to because the disk here is slow: the one
// with the quickest disk, if that is quick enough to be worth an interruption. Empty: none.
func quicker(own time.Duration, answers []answer) (to raft.ServerID, median time.Duration) {
	for _, a := range answers {
		r := a.report
		if a.err != nil || a.server.Suffrage != raft.Voter || r.Doubted || r.Slow || r.Append == 0 || r.Append*paceFactor > own {
			continue
		}
		if to == "" || r.Append < median {
			to, median = a.server.ID, r.Append
		}
	}
	return to, median
}

// relieve hands leadership over when the disk here has turned slow and another voter's has
// not, at most once in Timing.HandOver.
func (g *Group) relieve(now time.Time) {
	own, slow := g.disk.pace.state()
	g.obs.diskSlow.Set(boolFloat(slow))
	if !slow || !g.Leading() || g.Doubt() != nil || !g.relieved.IsZero() && now.Sub(g.relieved) < g.opts.Timing.HandOver {
		return
	}
	g.relieved = now
	to, median := quicker(own, g.ask(0))
	if to == "" {
		g.obs.handOverNone.Inc()
		g.opts.Logger.Warn("the disk is slow, and no other voter is known to have a quicker one: leadership stays here", "group", g.opts.ID,
			"median_append", own, "bound", g.opts.Timing.SlowAppend, "dir", g.opts.Dir)
		return
	}
	g.opts.Logger.Warn("the disk is slow: leadership is handed to a voter with a quicker one", "group", g.opts.ID,
		"median_append", own, "bound", g.opts.Timing.SlowAppend, "dir", g.opts.Dir, "to", string(to), "its_median_append", median)
	if err := g.handOver(to); err != nil {
		g.obs.handOverFailed.Inc()
		g.opts.Logger.Warn("leadership could not be handed over; it is tried again later", "group", g.opts.ID, "to", string(to), "error", err)
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
