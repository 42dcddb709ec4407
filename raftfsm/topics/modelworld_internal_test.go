package topics

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// begin is the wall clock at the start of a model, in Unix milliseconds.
const begin = 1_700_000_000_000

// server is one server of the group with its Keeper, its clocks and its timers.
type server struct {
	*grouptest.Member
	model *model

	// Group.Mu guards the fields below.
	keeper *Keeper
	timers []*modelTimer

	wall, opened uint64 // wall clock and elapsed time when it was started
	seen, seenAt uint64 // greatest stamp that was applied, and the elapsed time then
	latest       uint64 // greatest time that was returned
}

type modelTimer struct {
	at, order uint64
	f         func()
}

// open starts a server with a wall clock that is wrong by up to a minute.
func (s *server) open() {
	k := NewKeeper(Options{Logger: slog.New(slog.DiscardHandler), AfterFunc: s.afterFunc})
	s.Mu.Lock()
	s.opened, s.latest, s.keeper, s.timers = s.model.elapsed, 0, k, nil
	s.wall = begin + s.model.elapsed
	switch s.Rand.IntN(4) {
	case 0:
		s.wall -= s.Rand.Uint64N(60_000)
	case 1:
		s.wall += s.Rand.Uint64N(5_000)
	}
	s.Mu.Unlock()
	k.Attach(s)
}

// nowLocked is the cluster time of package group: the greatest stamp that was applied, or the wall clock at the start
// of the server, plus what has passed since. It never goes back.
func (s *server) nowLocked() uint64 {
	now := s.latest
	if s.seen > 0 {
		now = max(now, s.seen+s.model.elapsed-s.seenAt)
	}
	if s.LeadingLocked() {
		now = max(now, s.wall+s.model.elapsed-s.opened)
		s.latest = now
	}
	return now
}

// observe is called when the server has applied an entry.
func (s *server) observe(stamp uint64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.seen == 0 || stamp > s.seen+s.model.elapsed-s.seenAt {
		s.seen, s.seenAt = stamp, s.model.elapsed
	}
}

// Now implements Group.
func (s *server) Now() uint64 {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.nowLocked()
}

// Confirm implements Group.
func (s *server) Confirm(ctx context.Context) error {
	_, err := s.Ask(ctx)
	return err
}

// Commit implements Group.
func (s *server) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	out, _, err := s.Propose(ctx, r)
	return out, err
}

func (s *server) afterFunc(d time.Duration, f func()) (stop func() bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.model.order++
	t := &modelTimer{at: s.model.elapsed + uint64(d.Milliseconds()), order: s.model.order, f: f}
	s.timers = append(s.timers, t)
	return func() bool {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		i := slices.Index(s.timers, t)
		if i >= 0 {
			s.timers = slices.Delete(s.timers, i, i+1)
		}
		return i >= 0
	}
}

// pass advances the time, and ends the timers on the way one by one.
func (m *model) pass(d uint64) {
	for end := m.elapsed + d; ; {
		m.Mu.Lock()
		s, t := m.firstTimer()
		if t == nil || t.at > end {
			m.elapsed = end
			m.Mu.Unlock()
			return
		}
		m.elapsed = max(m.elapsed, t.at)
		s.timers = slices.DeleteFunc(s.timers, func(o *modelTimer) bool { return o == t })
		m.Mu.Unlock()
		t.f()
		m.Settle()
	}
}

// firstTimer returns the timer that ends first; nil = none. The caller holds Mu.
func (m *model) firstTimer() (of *server, first *modelTimer) {
	for _, s := range m.servers {
		for _, t := range s.timers {
			if first == nil || t.at < first.at || t.at == first.at && t.order < first.order {
				of, first = s, t
			}
		}
	}
	return of, first
}

// nextTimer returns how long it is until the next timer ends.
func (m *model) nextTimer() (d uint64, any bool) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	_, t := m.firstTimer()
	if t == nil {
		return 0, false
	}
	return t.at - min(t.at, m.elapsed), true
}

func (m *model) server(of *grouptest.Member) *server { return m.servers[of.ID-1] }

// restart ends a server and starts it again.
func (m *model) restart(s *server) {
	m.End(s.Member)
	s.keeper.Close()
	m.Group.Settle()
	s.open()
	m.Group.Settle()
}
