package feed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a history in memory.
type source struct {
	mu       sync.Mutex
	changes  []state.Change
	page     feed.Page // Read sets Changes and Seen
	wake     chan struct{}
	extended int
	fails    error
	closed   int  // number of closed scans
	off      bool // Extend does nothing
}

func newSource() *source {
	return &source{page: feed.Page{ID: 1}, wake: make(chan struct{})}
}

func (s *source) Read(_ context.Context, after uint64, maxBytes int) (feed.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.page
	if s.fails != nil || !p.Kept || after < p.Floor || after > p.Revision {
		return p, s.fails
	}
	p.Seen = p.Revision
	for i, c := range s.changes {
		if c.Revision <= after {
			continue
		}
		p.Changes = append(p.Changes, c)
		if maxBytes -= 300 + len(c.Value); maxBytes <= 0 && i < len(s.changes)-1 {
			p.Seen = c.Revision
			break
		}
	}
	return p, nil
}

func (s *source) Wait(ctx context.Context, after uint64) {
	s.mu.Lock()
	wake, newer := s.wake, s.page.Revision > after
	s.mu.Unlock()
	if newer {
		return
	}
	select {
	case <-wake:
	case <-ctx.Done():
	}
}

func (s *source) Extend(context.Context) error {
	s.change(func() {
		s.extended++
		s.page.Kept = !s.off
	})
	return nil
}

func (s *source) Cluster() string { return "01234567" }

func (s *source) Scan(context.Context, string) (feed.Scan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []state.Change{item("a/1"), item("b/1"), item("a/2")}
	return &scan{source: s, revision: s.page.Revision, items: items}, nil
}

func item(key string) state.Change { return state.Change{Item: state.Item{Key: key}} }

// scan delivers one item at a time.
type scan struct {
	source   *source
	revision uint64
	items    []state.Change
}

func (s *scan) Revision() uint64 { return s.revision }
func (s *scan) Close()           { s.source.change(func() { s.source.closed++ }) }
func (s *scan) Next(context.Context, int) ([]state.Change, bool, error) {
	one := s.items[:1]
	s.items = s.items[1:]
	return one, len(s.items) > 0, nil
}

// change calls f, which changes the source, and then wakes all calls of Wait.
func (s *source) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.wake)
	s.wake = make(chan struct{})
}

// write adds the changes of one request.
func (s *source) write(keys ...string) {
	s.change(func() {
		for i, k := range keys {
			s.page.Revision++
			s.changes = append(s.changes, state.Change{Item: state.Item{Key: k}, Revision: s.page.Revision,
				Last: i == len(keys)-1})
		}
	})
}

func start(t *testing.T, h *feed.Hub, s *source, r state.WatchRequest) state.Watch {
	t.Helper()
	w, err := h.Watch(t.Context(), "name", s, r)
	testutil.Must(t, err)
	t.Cleanup(w.Close)
	return w
}

// changes waits for the next changes of a watch and returns them.
func changes(t *testing.T, w state.Watch) []state.Change {
	t.Helper()
	part, err := w.Next(t.Context(), time.Minute)
	testutil.Must(t, err)
	return part.Changes
}

// upTo reads changes up to a revision. It returns the revisions of all changes that it has read.
func upTo(t *testing.T, w state.Watch, revision uint64) (got []uint64) {
	t.Helper()
	for len(got) == 0 || got[len(got)-1] < revision {
		for _, c := range changes(t, w) {
			got = append(got, c.Revision)
		}
	}
	return got
}

func closing(t *testing.T) *feed.Hub {
	h := &feed.Hub{}
	t.Cleanup(h.Close)
	return h
}

func TestWatch_DeliversEveryChangeOnceInOrder(t *testing.T) {
	const writers, writes = 3, 400
	h, s := closing(t), newSource()
	var watches []state.Watch
	for range 4 {
		watches = append(watches, start(t, h, s, state.WatchRequest{Prefix: "a/"}))
	}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range writes {
				s.write(fmt.Sprint("a/", i))
			}
		})
	}
	for i, w := range watches {
		wg.Go(func() {
			for want := uint64(1); want <= writers*writes; {
				part, err := w.Next(t.Context(), time.Minute)
				if err != nil {
					t.Errorf("watch %d: %v", i, err)
					return
				}
				for _, c := range part.Changes {
					if c.Revision != want || c.Position != want {
						t.Errorf("watch %d got revision %d with position %d, want %d", i, c.Revision, c.Position, want)
						return
					}
					want++
				}
			}
		})
	}
	wg.Wait()
	if s.extended == 0 {
		t.Error("the history was not switched on")
	}
}

// A watcher that needs changes older than those in memory reads them from the source, and misses none.
func TestWatch_SlowReaderReadsHistory(t *testing.T) {
	h, s := closing(t), newSource()
	slow := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	fast := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	const writes = 20_000 // more changes than a hub keeps in memory
	for range writes / 1000 {
		for range 1000 {
			s.write("a/1")
		}
		upTo(t, fast, s.page.Revision)
	}
	got := upTo(t, slow, writes)
	if len(got) != writes || !slices.IsSorted(got) || got[0] != 1 {
		t.Errorf("%d of %d changes, from %d to %d", len(got), writes, got[0], got[len(got)-1])
	}
}

func TestWatch_PositionIsNeverWithinARequest(t *testing.T) {
	h, s := closing(t), newSource()
	w := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	s.write("a/1", "b/1", "a/2", "b/2") // revisions 1 to 4
	testutil.Eventually(t, func() error {
		if n := w.Newest(); n != 4 {
			return fmt.Errorf("the newest change is %d, not 4", n)
		}
		return nil
	})
	var got []state.Change
	for len(got) < 2 {
		got = append(got, changes(t, w)...)
	}
	if got[0].Position != 0 || got[1].Position != 4 || got[1].Revision != 3 {
		t.Errorf("%+v", got)
	}
	if p := w.Position().String(); p != "01234567.4" {
		t.Errorf("position %s", p)
	}
}

func TestWatch_MatchesKeysAndResumes(t *testing.T) {
	h, s := closing(t), newSource()
	first := start(t, h, s, state.WatchRequest{Keys: []string{"a/1", "a/3"}})
	for i := range 4 {
		s.write(fmt.Sprint("a/", i))
	}
	if got := upTo(t, first, 4); !slices.Equal(got, []uint64{2, 4}) {
		t.Errorf("%v", got)
	}
	for from, want := range map[uint64][]uint64{0: {2, 4}, 2: {4}, 3: {4}} {
		w := start(t, h, s, state.WatchRequest{Keys: []string{"a/1", "a/3"}, Resume: true,
			From: state.Position{Revision: from}})
		if got := upTo(t, w, 4); !slices.Equal(got, want) {
			t.Errorf("from %d: %v, want %v", from, got, want)
		}
	}
	if _, err := h.Watch(t.Context(), "name", s, state.WatchRequest{Resume: true,
		From: state.Position{Cluster: "76543210", Revision: 1}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a position of another cluster: %v", err)
	}
}

func TestWatch_SnapshotThenChanges(t *testing.T) {
	h, s := closing(t), newSource()
	testutil.Must(t, s.Extend(t.Context()))
	s.write("a/0")
	w := start(t, h, s, state.WatchRequest{Prefix: "a/", Snapshot: true})
	s.write("a/9")
	var keys []string
	for synced := false; !synced; {
		part, err := w.Next(t.Context(), time.Minute)
		testutil.Must(t, err)
		for _, i := range part.Items {
			keys = append(keys, i.Key)
		}
		if synced = part.Synced; synced && part.Seen != 1 {
			t.Errorf("synced at %d", part.Seen)
		}
	}
	if !slices.Equal(keys, []string{"a/1", "a/2"}) || s.closed != 1 {
		t.Errorf("%v, %d scans closed", keys, s.closed)
	}
	if got := changes(t, w); len(got) != 1 || got[0].Revision != 2 {
		t.Errorf("%+v", got)
	}
}

func TestWatch_Ends(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *source)
		want   string
	}{
		"a restore":              {func(s *source) { s.page.Restored++ }, state.WatchRestored},
		"another history":        {func(s *source) { s.page.ID++ }, state.WatchCompacted},
		"changes that are gone":  {func(s *source) { s.page.Floor, s.page.Revision = 10, 20 }, state.WatchCompacted},
		"a history switched off": {func(s *source) { s.off, s.page.Kept = true, false }, state.WatchCompacted},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := closing(t), newSource()
			w := start(t, h, s, state.WatchRequest{Prefix: "a/"})
			s.write("a/1")
			upTo(t, w, 1)
			s.change(func() {
				c.change(s)
				s.page.Revision++ // this also wakes a hub that begins to wait after the change
			})
			_, err := w.Next(t.Context(), time.Minute)
			var end *state.WatchEnd
			if !errors.As(err, &end) || end.Reason != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestHub_CloseEndsWatches(t *testing.T) {
	h, s := &feed.Hub{}, newSource()
	w := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	h.Close()
	_, err := w.Next(t.Context(), time.Minute)
	var end *state.WatchEnd
	if !errors.As(err, &end) || end.Reason != state.WatchClosing {
		t.Errorf("Next: %v", err)
	}
	if _, err := h.Watch(t.Context(), "name", s, state.WatchRequest{}); !errors.As(err, &end) {
		t.Errorf("Watch: %v", err)
	}
}

// A source that is unavailable for a while delays a watch, but does not end it.
func TestWatch_OutlivesUnavailableSource(t *testing.T) {
	h, s := closing(t), newSource()
	w := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	s.change(func() { s.fails = fault.New(fault.Unavailable, "test", "the replica is being replaced") })
	s.write("a/1")
	s.change(func() { s.fails = nil })
	if got := upTo(t, w, 1); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestWatch_ReportsPositionAfterManyOtherChanges(t *testing.T) {
	h, s := closing(t), newSource()
	w := start(t, h, s, state.WatchRequest{Prefix: "a/"})
	for range 1500 {
		s.write("b/1")
	}
	part, err := w.Next(t.Context(), time.Minute)
	testutil.Must(t, err)
	if len(part.Changes) > 0 || part.Seen < 1000 {
		t.Errorf("%+v", part)
	}
}

// late is a source whose reads can be delayed: a read returns only after the test opens the gate.
type late struct {
	*source
	gate atomic.Pointer[chan struct{}] // nil = reads return at once
}

func (l *late) Read(ctx context.Context, after uint64, maxBytes int) (feed.Page, error) {
	page, err := l.source.Read(ctx, after, maxBytes)
	if gate := l.gate.Load(); gate != nil {
		<-*gate
	}
	return page, err
}

func TestPoll_ReadsThatOverlapAddAChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := &feed.Hub{}, &late{source: newSource()}
		defer h.Close()
		w, err := h.Watch(t.Context(), "name", s, state.WatchRequest{Prefix: "a/"})
		testutil.Must(t, err)
		defer w.Close()
		notified := 0
		w.OnChange(func() { notified++ })
		synctest.Wait()
		gate := make(chan struct{})
		s.gate.Store(&gate)
		s.write("a/1") // the topic reads the change
		w.Refresh()    // a second read gets the change too
		synctest.Wait()
		s.gate.Store(nil)
		close(gate)
		synctest.Wait()
		if notified == 0 {
			t.Error("the watch was not notified")
		}
		part, found, err := w.Poll()
		if err != nil || found != state.WatchReady || len(part.Changes) != 1 || part.Changes[0].Key != "a/1" {
			t.Errorf("got %v %d %v", part, found, err)
		}
		if part, found, err = w.Poll(); err != nil || len(part.Changes) > 0 || part.Seen < 1 {
			t.Errorf("got %v %d %v as confirmation", part, found, err)
		}
		if part, found, err = w.Poll(); err != nil || found != state.WatchIdle {
			t.Errorf("got %v %d %v at the end", part, found, err)
		}
	})
}

func TestPoll_ReportsAFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := &feed.Hub{}, newSource()
		defer h.Close()
		w, err := h.Watch(t.Context(), "name", s, state.WatchRequest{})
		testutil.Must(t, err)
		defer w.Close()
		s.change(func() { s.fails = fault.New(fault.Unavailable, "test", "the replica is being replaced") })
		w.Refresh()
		synctest.Wait()
		if part, found, err := w.Poll(); err != nil || found != state.WatchIdle {
			t.Errorf("got %v %d %v while the store is unavailable", part, found, err)
		}
		s.change(func() { s.fails = fault.New(fault.Corrupt, "test", "a checksum is wrong") })
		w.Refresh()
		synctest.Wait()
		if _, _, err := w.Poll(); !fault.Is(err, fault.Corrupt) {
			t.Errorf("got %v, want the failure of the store", err)
		}
	})
}
