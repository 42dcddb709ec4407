package due_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

const callDeliver = "deliver"

// member is one server of the group with its Keeper, its clocks and its timers.
type member struct {
	*grouptest.Member
	model *model

	// Group.Mu guards the fields below.
	keeper *due.Keeper
	timers []*modelTimer

	wall, opened uint64 // wall clock and elapsed time when it was started
	seen, seenAt uint64 // greatest stamp that was applied, and the elapsed time then
	latest       uint64 // greatest time that was returned
}

type modelTimer struct {
	at, order uint64
	f         func()
}

// open starts a server with a wall clock that is wrong by up to an hour.
func (s *member) open() {
	k := due.NewKeeper(due.Options{Logger: slog.New(slog.DiscardHandler), AfterFunc: s.afterFunc})
	s.Mu.Lock()
	s.opened, s.latest, s.keeper, s.timers = s.model.elapsed, 0, k, nil
	s.wall = begin + s.model.elapsed
	switch s.Rand.IntN(4) {
	case 0:
		s.wall -= s.Rand.Uint64N(3_600_000)
	case 1:
		s.wall += s.Rand.Uint64N(20_000)
	}
	s.Mu.Unlock()
	k.Deliver(due.KindJob, s)
	k.Attach(s)
}

// nowLocked is the cluster time of package group: the greatest stamp that was applied, or the wall clock at the start
// of the server, plus what has passed since. It never goes back.
func (s *member) nowLocked() uint64 {
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
func (s *member) observe(stamp uint64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.seen == 0 || stamp > s.seen+s.model.elapsed-s.seenAt {
		s.seen, s.seenAt = stamp, s.model.elapsed
	}
}

// Now implements due.Group.
func (s *member) Now() uint64 {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.nowLocked()
}

// Confirm implements due.Group.
func (s *member) Confirm(ctx context.Context) error {
	_, err := s.Ask(ctx)
	return err
}

// Commit implements due.Group.
func (s *member) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	out, _, err := s.Propose(ctx, r)
	return out, err
}

// Room implements due.Deliverer.
func (s *member) Room(due.Home) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.model.room
}

// Deliver implements due.Deliverer.
func (s *member) Deliver(ctx context.Context, t *due.Tick) (due.Result, error) {
	r := s.Wait(ctx, &grouptest.Call{Kind: callDeliver, Label: t.Keys(t.Name)[0], Data: &delivery{Tick: *t}})
	answer, known := r.Value.(due.Result)
	if !known {
		answer = due.Undelivered
	}
	return answer, r.Err
}

func (s *member) afterFunc(d time.Duration, f func()) (stop func() bool) {
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
func (m *model) firstTimer() (owner *member, first *modelTimer) {
	for _, s := range m.servers {
		for _, t := range s.timers {
			if first == nil || t.at < first.at || t.at == first.at && t.order < first.order {
				owner, first = s, t
			}
		}
	}
	return owner, first
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

func (m *model) server(at *grouptest.Member) *member { return m.servers[at.ID-1] }

// restart ends a server and starts it again.
func (m *model) restart(s *member) {
	m.End(s.Member)
	s.keeper.Close()
	m.Settle()
	s.open()
	m.Settle()
}

// release answers one call.
func (m *model) release(c *grouptest.Call, whole bool) {
	if c.Kind != callDeliver {
		m.Release(c, whole)
		return
	}
	d, r := c.Data.(*delivery), due.Done
	if !whole {
		r = []due.Result{due.Done, due.Done, due.Done, due.Done, due.Unknown, due.Failed, due.Failed, due.Undelivered,
			due.Undelivered, due.Cancel}[m.Rand.IntN(10)]
	}
	out := grouptest.Reply{Value: r}
	if r == due.Failed || r == due.Undelivered {
		out.Err = fault.New(fault.Internal, "test", "no luck")
	}
	d.answered, d.result = m.server(c.Member).Now(), r
	m.Note("%d ms: %s, tick %d.%d attempt %d, is answered with %d", m.elapsed, c.Name(), d.Revision, d.Number,
		d.Attempt, r)
	m.Answer(c, out)
}

// flightOf identifies the work of which a Keeper has at most one tick under way.
type flightOf struct {
	member *grouptest.Member
	key    string // of the state
}

// delivery is one delivery of a tick.
type delivery struct {
	due.Tick
	fired    uint64 // cluster time at the server when it was handed out
	answered uint64 // that of the answer; 0 = there is none
	result   due.Result
}

// proposal is what the model notes about a proposal.
type proposal struct {
	now    uint64    // cluster time at the server when it was made
	flight *delivery // of a Keeper: the newest delivery of that work at this server
}

// client is one operation of a client.
type client struct {
	id     int
	what   string
	put    due.Put
	before []uint64 // revisions of the work with that name that were stored before it began
	done   bool
}

func (c *client) String() string { return fmt.Sprintf("client %d: %s", c.id, c.what) }
