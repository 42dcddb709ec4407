package feed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// model plays random schedules with watches of a store, and checks these invariants:
//
//  1. A watch delivers every matching change after its position exactly once and in the order of revisions, until it
//     ends. This is also true if the watch is resumed at another hub from its last position, as after a reconnect to
//     another node.
//  2. If the next change is no longer kept, a watch ends with state.WatchCompacted.
//  3. No position separates the matching changes of a request, and positions never go back.
//  4. A watch whose client reads nothing for a long time does not delay other watches. It continues, or ends with an
//     error after which the client can resume.
//  5. When the writes have ended, every watch that has not ended has every change. OnChange has notified each polled
//     watch of every change that the watch had not delivered yet.
//
// There is one history in memory. Each hub has its own replica of the history, which may be behind, unavailable for a
// while, or trimmed. The schedule chooses the writes, their size, the progress of replicas, and the order in which
// watches read. See testutil.Seeds for other seeds.
type model struct {
	t       *testing.T
	rand    *rand.Rand
	all     []state.Change // changes of the whole history
	hubs    []*feed.Hub
	sources []*source
	watches []*follower
	ended   int
	broken  string
}

// follower is a client with a watch, and what it has received.
type follower struct {
	id     int
	hub    int
	watch  state.Watch
	prefix string
	pos    uint64      // the client has received everything up to this position, which is never within a request
	stuck  bool        // the client reads nothing
	polls  bool        // the client reads with Poll, and calls Next only after WatchBehind
	quiet  atomic.Bool // the last Poll returned nothing, and the function of OnChange was not called after that
	held   []uint64    // received revisions after pos, which belong to an incomplete request
}

func (m *model) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

// write adds the changes of one request to the history.
func (m *model) write() {
	n := 1 + m.rand.IntN(4)
	for i := range n {
		c := state.Change{Item: state.Item{Key: []string{"a/1", "a/2", "b/1"}[m.rand.IntN(3)]},
			Revision: uint64(len(m.all) + 1), Last: i == n-1, Deleted: m.rand.IntN(6) == 0}
		if m.rand.IntN(3) == 0 {
			c.Value = make([]byte, m.rand.IntN(60_000)) // so that hubs cannot keep everything in memory
		}
		m.all = append(m.all, c)
	}
}

// replicate makes a replica apply some of the requests that it does not have, or all of them. It applies only whole
// requests.
func (m *model) replicate(s *source, everything bool) {
	s.change(func() {
		for int(s.page.Revision) < len(m.all) && (everything || m.rand.IntN(4) > 0) {
			for {
				c := m.all[s.page.Revision]
				s.changes = append(s.changes, c)
				s.page.Revision++
				if c.Last {
					break
				}
			}
		}
	})
}

// trim drops old changes of a replica.
func (m *model) trim(s *source) {
	s.change(func() {
		for n := m.rand.IntN(len(s.changes) + 1); n > 0; n-- {
			s.page.Floor = s.changes[0].Revision
			s.changes = s.changes[1:]
		}
	})
}

// open starts a watch at a hub. If resume is true, it resumes the watch at the last position of the client.
func (m *model) open(f *follower, hub int, resume bool) {
	if f.watch != nil {
		f.watch.Close()
		f.watch = nil
	}
	f.hub, f.held = hub, nil
	r := state.WatchRequest{Prefix: f.prefix, Resume: resume, From: state.Position{Revision: f.pos}}
	w, err := m.hubs[hub].Watch(m.t.Context(), "name", m.sources[hub], r)
	var end *state.WatchEnd
	switch {
	case errors.As(err, &end) && end.Reason == state.WatchCompacted:
		if f.pos >= m.sources[hub].page.Floor {
			m.fail("watch %d cannot go on at %d, and changes after %d are kept", f.id, f.pos, m.sources[hub].page.Floor)
		}
		m.ended++
		m.open(f, hub, false)
	case fault.Is(err, fault.Unavailable): // the replica is behind, or cannot be read
	case err != nil:
		m.t.Fatal(err)
	default:
		f.watch = w
		f.quiet.Store(false)
		w.OnChange(func() { f.quiet.Store(false) })
		if !resume {
			f.pos = w.Position().Revision
		}
	}
}

// read reads the next part of a watch and checks it. It returns false if there is nothing to read.
func (m *model) read(f *follower) bool {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Second)
	defer cancel()
	part, err := m.take(ctx, f)
	var end *state.WatchEnd
	switch {
	case errors.As(err, &end) && end.Reason == state.WatchCompacted:
		m.ended++
		m.open(f, f.hub, true)
		return true
	case err != nil && ctx.Err() != nil && m.sources[f.hub].fails != nil:
		f.watch.Close()
		f.watch = nil // the client goes away, and resumes
		return false
	case err != nil:
		m.fail("watch %d ends with %v", f.id, err)
		return false
	}
	for i := range part.Changes {
		m.receive(f, &part.Changes[i])
	}
	if p := f.watch.Position().Revision; p < f.pos {
		m.fail("the position of watch %d goes back from %d to %d", f.id, f.pos, p)
	} else if len(f.held) == 0 || p >= f.held[len(f.held)-1] {
		m.complete(f, p)
	}
	return len(part.Changes) > 0
}

// take returns the next part of a watch.
func (m *model) take(ctx context.Context, f *follower) (state.WatchPart, error) {
	if !f.polls {
		return f.watch.Next(ctx, time.Millisecond)
	}
	if m.rand.IntN(3) == 0 {
		f.watch.Refresh()
		synctest.Wait()
	}
	part, found, err := f.watch.Poll()
	switch {
	case err != nil:
	case found == state.WatchBehind:
		return f.watch.Next(ctx, time.Millisecond)
	case found == state.WatchIdle:
		f.quiet.Store(true)
	case len(part.Changes) == 0 && f.watch.Position().Revision != part.Seen:
		m.fail("watch %d is at %d, and got %d as its position", f.id, f.watch.Position().Revision, part.Seen)
	}
	return part, err
}

// receive checks the order and completeness of one received change, and records it.
func (m *model) receive(f *follower, c *state.Change) {
	last := f.pos
	if n := len(f.held); n > 0 {
		last = f.held[n-1]
	}
	if c.Revision <= last {
		m.fail("watch %d got change %d after %d", f.id, c.Revision, last)
		return
	}
	if want := m.next(f, last); want != c.Revision {
		m.fail("watch %d at %d got change %d, and the next one is %d", f.id, last, c.Revision, want)
	}
	f.held = append(f.held, c.Revision)
	if c.Position != 0 {
		m.complete(f, c.Position)
	}
}

// complete checks that a client has received all matching changes up to the position p, and that p does not split a
// request.
func (m *model) complete(f *follower, p uint64) {
	if p > uint64(len(m.all)) || m.splits(f, p) {
		m.fail("position %d of watch %d is within a request", p, f.id)
	}
	last := f.pos
	if n := len(f.held); n > 0 {
		last = f.held[n-1]
	}
	if missing := m.next(f, last); missing != 0 && missing <= p {
		m.fail("watch %d is at %d, and change %d was not delivered", f.id, p, missing)
	}
	f.pos, f.held = max(f.pos, p), nil
}

// splits reports whether p is within a request that has matching changes both up to p and after p.
func (m *model) splits(f *follower, p uint64) bool {
	if p == 0 || m.all[p-1].Last {
		return false
	}
	matches := func(c state.Change) bool { return strings.HasPrefix(c.Key, f.prefix) }
	begin, end := p-1, p
	for begin > 0 && !m.all[begin-1].Last {
		begin--
	}
	for !m.all[end].Last {
		end++
	}
	return slices.ContainsFunc(m.all[begin:p], matches) && slices.ContainsFunc(m.all[p:end+1], matches)
}

// next returns the revision of the first matching change whose revision is greater than after, or 0 if there is none.
func (m *model) next(f *follower, after uint64) uint64 {
	for i := range m.all[after:] {
		if c := &m.all[after:][i]; strings.HasPrefix(c.Key, f.prefix) {
			return c.Revision
		}
	}
	return 0
}

func (m *model) step() {
	f := m.watches[m.rand.IntN(len(m.watches))]
	s := m.sources[m.rand.IntN(len(m.sources))]
	switch n := m.rand.IntN(100); {
	case n < 35:
		m.write()
	case n < 60:
		m.replicate(s, false)
	case n < 85:
		if f.watch != nil && !f.stuck {
			m.read(f)
		}
	case n < 90:
		m.open(f, m.rand.IntN(len(m.hubs)), true)
	case n < 94:
		f.stuck = !f.stuck
	case n < 96:
		s.change(func() { s.fails = fault.New(fault.Unavailable, "test", "the replica is being replaced") })
	case n < 98:
		s.change(func() { s.fails = nil })
	default:
		m.trim(s)
	}
}

// playWatches runs the schedule of a seed. broken describes the violated invariant, and ended is the number of
// watches that have ended.
func playWatches(t *testing.T, seed uint64, steps int) (broken string, ended int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{t: t, rand: rand.New(rand.NewPCG(seed, 1))}
		m.write() // because position 0 means the beginning of the history
		for range 3 {
			s := newSource()
			testutil.Must(t, s.Extend(t.Context()))
			m.replicate(s, true)
			m.hubs, m.sources = append(m.hubs, &feed.Hub{}), append(m.sources, s)
		}
		for i := range 6 {
			f := &follower{id: i, polls: i%2 == 0, prefix: []string{"a/", "a/", "b/", ""}[m.rand.IntN(4)]}
			m.watches = append(m.watches, f)
			m.open(f, i%3, false)
		}
		for i := 0; i < steps && m.broken == ""; i++ {
			m.step()
			synctest.Wait()
		}
		m.finish()
		for _, f := range m.watches {
			if f.watch != nil {
				f.watch.Close()
			}
		}
		for _, h := range m.hubs {
			h.Close()
		}
		broken, ended = m.broken, m.ended
	})
	return broken, ended
}

// finish makes every replica apply the whole history. It then checks that every watch delivers all changes.
func (m *model) finish() {
	for _, s := range m.sources {
		s.change(func() { s.fails = nil })
		m.replicate(s, true)
	}
	<-time.After(time.Second) // hubs read an unavailable source again after a pause
	for _, f := range m.watches {
		if f.watch == nil {
			m.open(f, f.hub, true)
		}
		if missing := m.next(f, f.pos); f.polls && f.quiet.Load() && missing != 0 && len(f.held) == 0 {
			m.fail("watch %d at %d was not notified of change %d", f.id, f.pos, missing)
		}
		for m.broken == "" && m.read(f) {
			continue
		}
		if missing := m.next(f, f.pos); m.broken == "" && missing != 0 {
			m.fail("watch %d stays at %d, and does not get change %d", f.id, f.pos, missing)
		}
	}
}

func TestModel_WatchesGetEveryChangeOnce(t *testing.T) {
	first, n := testutil.Seeds(t, 40)
	ended := 0
	for seed := first; seed < first+n; seed++ {
		broken, compacted := playWatches(t, seed, 1500)
		if broken != "" {
			t.Fatalf("seed %d: %s", seed, broken)
		}
		ended += compacted
	}
	if ended == 0 && n > 10 {
		t.Error("no watch was behind what is kept: the schedules are too mild")
	}
}
