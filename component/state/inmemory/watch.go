package inmemory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
)

// historyLife is how long, in milliseconds, a history is kept after it was last extended.
const historyLife = 30 * 60 * 1000

// watching has the histories of watched prefixes. Store.mu guards it.
type watching struct {
	cluster string // cluster id in positions; random in each process, because the data does not survive the process
	all     map[string]*history
}

// history has the changes of the keys of one prefix.
type history struct {
	id, floor uint64 // the changes after floor are kept
	until     int64  // time in Unix milliseconds at which the history is dropped
	bytes     int64
	changes   []state.Change
	stamps    []int64
	wake      chan struct{} // closed by the next change
}

func newCluster() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // rand.Read never fails
	return hex.EncodeToString(b[:])
}

// note adds a change to the history for the prefix of its key. It does nothing if the prefix is not watched. For a
// write, e is the new entry. For a deletion, e is the removed or expired entry, and note assigns a new revision to the
// deletion. The caller must hold s.mu for writing.
func (s *Store) note(e *entry, deleted bool, now int64) {
	if len(s.watching.all) == 0 {
		return
	}
	h := s.watching.all[state.PrefixOf(e.key)]
	if h == nil {
		return
	}
	c := state.Change{Item: e.item(), Revision: e.revision, Deleted: deleted, Last: true}
	if deleted {
		s.revision++
		c = state.Change{Item: state.Item{Key: e.key}, Revision: s.revision, Deleted: true, Expired: e.gone(now),
			Last: true}
	}
	h.changes, h.stamps = append(h.changes, c), append(h.stamps, now)
	h.bytes += sizeOf(&c)
	close(h.wake)
	h.wake = make(chan struct{})
	h.trim(s.bounds, now)
}

// groupChanges groups the changes after the revision since, which belong to one request. In each history, it sets Last
// to false in all of these changes but the newest. The caller must hold s.mu for writing.
func (s *Store) groupChanges(since uint64) {
	for _, h := range s.watching.all {
		for i := len(h.changes) - 2; i >= 0 && h.changes[i].Revision > since; i-- {
			h.changes[i].Last = false
		}
	}
}

func sizeOf(c *state.Change) int64 { return int64(len(c.Key) + len(c.Value) + 128) }

func (h *history) trim(b state.HistoryBounds, now int64) {
	drop := 0
	for drop < len(h.changes) && (h.bytes > b.Bytes && drop < len(h.changes)-1 ||
		h.stamps[drop]+b.Age.Milliseconds() <= now) {
		h.floor, h.bytes = h.changes[drop].Revision, h.bytes-sizeOf(&h.changes[drop])
		drop++
	}
	// The changes that stay are not moved, because there may be many. append frees the places before them when it grows
	// the slice.
	clear(h.changes[:drop])
	h.changes, h.stamps = h.changes[drop:], h.stamps[drop:]
}

// forgetHistories drops changes that are too old, and histories that were not extended in time. The caller holds s.mu
// for writing.
func (s *Store) forgetHistories(now int64) {
	for prefix, h := range s.watching.all {
		if h.trim(s.bounds, now); h.until <= now {
			close(h.wake)
			delete(s.watching.all, prefix)
		}
	}
}

// Watch implements state.Watcher.
func (s *Store) Watch(ctx context.Context, r state.WatchRequest) (state.Watch, error) {
	prefix := state.PrefixOf(r.Prefix)
	if len(r.Keys) > 0 {
		prefix = state.PrefixOf(r.Keys[0])
	}
	for _, k := range r.Keys {
		if state.PrefixOf(k) != prefix {
			return nil, &fault.Error{Code: fault.Invalid, Op: "inmemory.Watch", Key: k,
				Msg: "the keys of one watch have different prefixes", Hint: "use one watch for each key prefix"}
		}
	}
	if len(r.Keys) == 0 && prefix == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: "inmemory.Watch", Key: r.Prefix,
			Msg: "the prefix of a watch needs \"||\"", Hint: "watch single keys, or keys with a prefix before \"||\""}
	}
	return s.hub.Watch(ctx, prefix, &source{s, prefix}, r)
}

// source implements feed.Source.
type source struct {
	store  *Store
	prefix string
}

// Cluster implements feed.Source.
func (s *source) Cluster() string { return s.store.watching.cluster }

// Extend implements feed.Source.
func (s *source) Extend(ctx context.Context) error {
	st := s.store
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.usable(ctx); err != nil {
		return err
	}
	h := st.watching.all[s.prefix]
	if h == nil {
		st.revision++
		h = &history{id: st.revision, floor: st.revision, wake: make(chan struct{})}
		if st.watching.all == nil {
			st.watching.all = map[string]*history{}
		}
		st.watching.all[s.prefix] = h
	}
	h.until = st.clock.millis() + historyLife
	return nil
}

// Read implements feed.Source.
func (s *source) Read(ctx context.Context, after uint64, maxBytes int) (feed.Page, error) {
	st := s.store
	st.mu.RLock()
	defer st.mu.RUnlock()
	if err := st.usable(ctx); err != nil {
		return feed.Page{}, err
	}
	page := feed.Page{Revision: st.revision}
	h := st.watching.all[s.prefix]
	if h == nil {
		return page, nil
	}
	page.Kept, page.ID, page.Floor = true, h.id, h.floor
	if after < h.floor || after > st.revision {
		return page, nil
	}
	page.Seen = st.revision
	for i := h.after(after); i < len(h.changes); i++ {
		if maxBytes <= 0 && len(page.Changes) > 0 {
			page.Seen = page.Changes[len(page.Changes)-1].Revision
			break
		}
		maxBytes -= int(sizeOf(&h.changes[i]))
		page.Changes = append(page.Changes, h.changes[i])
	}
	return page, nil
}

// after returns the index of the first change after a revision. If there is none, it returns the number of changes.
func (h *history) after(revision uint64) int {
	i, _ := slices.BinarySearchFunc(h.changes, revision+1, func(c state.Change, r uint64) int {
		switch {
		case c.Revision < r:
			return -1
		case c.Revision > r:
			return 1
		}
		return 0
	})
	return i
}

// Wait implements feed.Source.
func (s *source) Wait(ctx context.Context, after uint64) {
	s.store.mu.RLock()
	h := s.store.watching.all[s.prefix]
	if h == nil || h.after(after) < len(h.changes) {
		s.store.mu.RUnlock()
		return
	}
	wake := h.wake
	s.store.mu.RUnlock()
	select {
	case <-wake:
	case <-s.store.stop:
	case <-ctx.Done():
	}
}

// Scan implements feed.Source.
func (s *source) Scan(ctx context.Context, prefix string) (feed.Scan, error) {
	st := s.store
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.usable(ctx); err != nil {
		return nil, err
	}
	out := &scan{revision: st.revision, now: st.clock.millis()}
	copied := st.items.Clone() // the copy shares the entries; later writes do not change the copy
	copied.AscendGreaterOrEqual(&entry{key: prefix}, func(e *entry) bool {
		if !strings.HasPrefix(e.key, prefix) {
			return false
		}
		if !e.gone(out.now) {
			out.rest = append(out.rest, e)
		}
		return true
	})
	return out, nil
}

// scan implements feed.Scan.
type scan struct {
	revision uint64
	now      int64
	rest     []*entry
}

func (s *scan) Revision() uint64 { return s.revision }

func (s *scan) Close() { s.rest = nil }

func (s *scan) Next(_ context.Context, maxBytes int) (items []state.Change, more bool, err error) {
	for len(s.rest) > 0 && maxBytes > 0 {
		e := s.rest[0]
		items = append(items, state.Change{Item: e.item(), Revision: e.revision})
		maxBytes -= len(e.key) + len(e.value) + 128
		s.rest = s.rest[1:]
	}
	return items, len(s.rest) > 0, nil
}
