package grouptest

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Epoch is the simulated time at which each group is created, in Unix milliseconds. It is 2026-01-01 00:00:00 UTC, a
// Thursday.
const Epoch = uint64(1767225600000)

// clocks are the clocks and the timers of a server. Group.Mu guards them.
type clocks struct {
	started bool
	timers  []*timer

	wall, opened uint64 // wall clock and elapsed time when the clocks were started
	seen, seenAt uint64 // greatest stamp that was applied, and the elapsed time then
	latest       uint64 // greatest time that NowLocked has returned while the server led
}

type timer struct {
	at, order uint64
	f         func()
}

// StartClocks simulates the start of the server's process: the server gets new clocks and loses all timers. At random,
// the new wall clock is exact, less than slow milliseconds behind, or less than fast milliseconds ahead. Both limits
// must be positive.
//
// Before the first call, the entries that the server proposes have the stamp 1. Afterwards they have the cluster time.
func (m *Member) StartClocks(slow, fast uint64) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.started, m.opened, m.latest, m.timers = true, m.Elapsed, 0, nil
	m.wall = Epoch + m.Elapsed
	switch m.Rand.IntN(4) {
	case 0:
		m.wall -= m.Rand.Uint64N(slow)
	case 1:
		m.wall += m.Rand.Uint64N(fast)
	}
}

// NowLocked works like Now, for callers that hold Mu.
func (m *Member) NowLocked() uint64 {
	now := m.latest
	if m.seen > 0 {
		now = max(now, m.seen+m.Elapsed-m.seenAt)
	}
	if m.leads {
		now = max(now, m.wall+m.Elapsed-m.opened)
		m.latest = now
	}
	return now
}

// Now returns the cluster time, computed as in package group. This is the greatest applied stamp plus the time elapsed
// since that stamp was applied. On a leader, the result is at least the server's wall clock. The result does not
// decrease, except when StartClocks is called.
func (m *Member) Now() uint64 {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.NowLocked()
}

// observe records the stamp of an entry that the server has applied.
func (m *Member) observe(stamp uint64) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.seen == 0 || stamp > m.seen+m.Elapsed-m.seenAt {
		m.seen, m.seenAt = stamp, m.Elapsed
	}
}

// stamp returns the stamp of an entry that the server appends now.
func (m *Member) stamp() uint64 {
	if !m.started {
		return 1
	}
	return m.Now()
}

// Confirm works like Ask, but returns no position. With Confirm and Commit, Member implements records.Group.
func (m *Member) Confirm(ctx context.Context) error {
	_, err := m.Ask(ctx)
	return err
}

// Commit works like Propose, but returns no position.
func (m *Member) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	out, _, err := m.Propose(ctx, r)
	return out, err
}

// AfterFunc is like time.AfterFunc, but it uses the simulated time, which only Pass advances. StartClocks drops the
// timer.
func (m *Member) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.begun++
	t := &timer{at: m.Elapsed + uint64(d.Milliseconds()), order: m.begun, f: f} //nolint:gosec // not negative
	m.timers = append(m.timers, t)
	return func() bool {
		m.Mu.Lock()
		defer m.Mu.Unlock()
		i := slices.Index(m.timers, t)
		if i >= 0 {
			m.timers = slices.Delete(m.timers, i, i+1)
		}
		return i >= 0
	}
}

// Timers returns how many timers of the server have not fired.
func (m *Member) Timers() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return len(m.timers)
}

// Pass advances the time by d milliseconds. It fires the timers that end in this time, one by one.
func (g *Group) Pass(d uint64) {
	for end := g.Elapsed + d; ; {
		g.Mu.Lock()
		m, t := g.firstTimer()
		if t == nil || t.at > end {
			g.Elapsed = end
			g.Mu.Unlock()
			return
		}
		g.Elapsed = max(g.Elapsed, t.at)
		m.timers = slices.DeleteFunc(m.timers, func(o *timer) bool { return o == t })
		g.Mu.Unlock()
		t.f()
		g.Settle()
	}
}

// firstTimer returns the server with the timer that ends first, and that timer. It returns nil if there is no timer.
// The caller holds Mu.
func (g *Group) firstTimer() (owner *Member, first *timer) {
	for _, m := range g.Members {
		for _, t := range m.timers {
			if first == nil || t.at < first.at || t.at == first.at && t.order < first.order {
				owner, first = m, t
			}
		}
	}
	return owner, first
}

// NextTimer returns the number of milliseconds until the next timer fires. ok is false if there is no timer.
func (g *Group) NextTimer() (d uint64, ok bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	_, t := g.firstTimer()
	if t == nil {
		return 0, false
	}
	return t.at - min(t.at, g.Elapsed), true
}
