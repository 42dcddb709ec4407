// Package inmemory implements the component type state.in-memory: a state store in the memory of the process. The
// package owns the keys of a store and their expiry.
//
// It is the reference implementation of state.Store, and therefore simple. It uses neither the disk nor the network.
// One goroutine removes expired keys, and watches use the goroutines of a feed.Hub. Close waits for all of them.
package inmemory

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "state.in-memory"

// Options are the settings of a store. The zero value is valid.
type Options struct {
	Now        func() time.Time // nil = time.Now
	SweepEvery time.Duration    // how often expired keys are removed; 0 = one second
	History    state.HistoryBounds
}

// Store implements state.Store and all optional interfaces except state.Pinger. Every read and write is linearizable,
// because one lock guards the only copy of the data.
type Store struct {
	clock  clock
	bounds state.HistoryBounds
	hub    feed.Hub // delivers changes to watches
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu       sync.RWMutex // guards the fields below
	closed   bool
	revision uint64 // revision of the latest write; never decreases, so no ETag is used twice
	items    *btree.BTreeG[*entry]
	due      *btree.BTreeG[*entry] // items that expire
	replies  replies
	watching watching
}

// entry is one stored key. It is never changed, only replaced.
type entry struct {
	key         string
	value       []byte
	contentType string
	revision    uint64
	expires     int64 // Unix milliseconds; 0 = never
}

func byKey(a, b *entry) bool { return a.key < b.key }

func byExpiry(a, b *entry) bool {
	if a.expires != b.expires {
		return a.expires < b.expires
	}
	return a.key < b.key
}

// Open returns an empty store. It must be closed.
func Open(o Options) *Store {
	const degree = 32
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.SweepEvery <= 0 {
		o.SweepEvery = time.Second
	}
	s := &Store{
		clock:    clock{now: o.Now},
		bounds:   o.History.WithDefaults(),
		watching: watching{cluster: newCluster()},
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
		items:    btree.NewG(degree, byKey),
		due:      btree.NewG(degree, byExpiry),
	}
	go s.sweep(o.SweepEvery)
	return s
}

// Close implements state.Store. The data is lost.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.stop)
		s.hub.Close()
		<-s.done
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
		s.items.Clear(false)
		s.due.Clear(false)
		s.replies = replies{}
	})
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL,
		state.FeatureDeleteWithPrefix}
}

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return state.Item{}, err
	}
	return s.read(r.Key, s.clock.millis()), nil
}

// BulkGet implements state.BulkGetter. It reads all keys at one instant.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	now := s.clock.millis()
	out := make([]state.Item, len(r.Keys))
	size := int64(0)
	for i, key := range r.Keys {
		out[i] = s.read(key, now)
		if size += int64(len(out[i].Value)); r.MaxBytes > 0 && size > r.MaxBytes {
			return nil, state.ValuesTooLarge("inmemory.BulkGet", r.MaxBytes)
		}
	}
	return out, nil
}

// maxPage bounds a page, and so the time that a listing holds the lock.
const maxPage = 1000

// List implements state.Lister.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return state.Page{}, err
	}
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	now := s.clock.millis()
	page := state.Page{Proof: proof()}
	s.items.AscendGreaterOrEqual(&entry{key: max(r.Prefix, r.After)}, func(e *entry) bool {
		switch {
		case !strings.HasPrefix(e.key, r.Prefix):
			return false
		case e.gone(now) || r.After != "" && e.key == r.After:
			return true
		case len(page.Items) == limit:
			page.More = true
			return false
		}
		page.Items = append(page.Items, e.item())
		return true
	})
	return page, nil
}

// read returns the item of a key. The caller holds s.mu.
func (s *Store) read(key string, now int64) state.Item {
	e := s.find(key, now)
	if e == nil {
		return state.Item{Key: key, Proof: proof()}
	}
	return e.item()
}

// find returns the current entry of key, or nil. The caller holds s.mu.
func (s *Store) find(key string, now int64) *entry {
	e, ok := s.items.Get(&entry{key: key})
	if !ok || e.gone(now) {
		return nil
	}
	return e
}

// usable returns an error if ctx has ended or the store is closed. The caller holds s.mu.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &fault.Error{Code: fault.Timeout, Op: "inmemory.Store", Msg: "the request was given up", Err: err}
	}
	if s.closed {
		return &fault.Error{Code: fault.Unavailable, Op: "inmemory.Store", Msg: "the store is closed"}
	}
	return nil
}

func (e *entry) gone(now int64) bool { return e.expires != 0 && e.expires <= now }

func (e *entry) etag() string { return strconv.FormatUint(e.revision, 10) }

func (e *entry) item() state.Item {
	item := state.Item{Key: e.key, Value: e.value, ContentType: e.contentType, ETag: e.etag(), Proof: proof()}
	if e.expires != 0 {
		item.Expires = time.UnixMilli(e.expires).UTC()
	}
	return item
}

func proof() state.Proof { return state.Proof{Level: state.Linearizable} }

// sweep removes expired keys and other outdated data, once in each interval, until the store is closed.
func (s *Store) sweep(every time.Duration) {
	defer close(s.done)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
			for s.removeSome() {
			}
		}
	}
}

// removeSome removes a limited number of expired keys, so that other calls do not wait long for the lock. It returns
// true if there may be more expired keys.
func (s *Store) removeSome() bool {
	const batch = 1000
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.millis()
	s.replies.forget(now)
	s.forgetHistories(now)
	var gone []*entry
	s.due.Ascend(func(e *entry) bool {
		if e.gone(now) && len(gone) < batch {
			gone = append(gone, e)
			return true
		}
		return false
	})
	for _, e := range gone {
		s.remove(e)
		s.note(e, true, now)
	}
	return len(gone) == batch
}

// remove removes an entry. The caller holds s.mu for writing.
func (s *Store) remove(e *entry) {
	s.items.Delete(e)
	if e.expires != 0 {
		s.due.Delete(e)
	}
}

// put replaces the entry of a key. The caller holds s.mu for writing.
func (s *Store) put(e *entry) {
	if old, ok := s.items.ReplaceOrInsert(e); ok && old.expires != 0 {
		s.due.Delete(old)
	}
	if e.expires != 0 {
		s.due.ReplaceOrInsert(e)
	}
}

// Size returns the number of keys, including expired ones that are not removed yet.
func (s *Store) Size() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.items.Len()
}

func clone(etags []string) []string { return slices.Clone(etags) }
