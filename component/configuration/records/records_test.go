package records_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/configurationtest"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, backing records.Backing) *records.Store {
	t.Helper()
	s := records.New(records.Options{Backing: backing, MaxItems: 100, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore_Conformance(t *testing.T) {
	configurationtest.Run(t, configurationtest.Traits{Metadata: true, EmptyValues: true, Writes: true},
		func(t *testing.T) (configuration.Store, configurationtest.Subject) {
			s := open(t, inmemory.Open(inmemory.Options{}))
			return s, configurationtest.Written{Writer: s}
		})
}

func TestStore_RefusesTooManyItems(t *testing.T) {
	s := open(t, inmemory.Open(inmemory.Options{}))
	w := configurationtest.Written{Writer: s}
	for i := range 10 {
		var items []configuration.Item
		for j := range 10 {
			items = append(items, configuration.Item{Key: fmt.Sprintf("k%d-%d", i, j), Value: "v"})
		}
		w.Set(t, items...)
	}
	w.Set(t, configuration.Item{Key: "k0-0", Value: "changed"}) // this write adds no key
	_, err := s.Write(t.Context(), configuration.WriteRequest{
		Changes: []configuration.Change{{Item: configuration.Item{Key: "one more"}}}})
	if !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v", err)
	}
}

// breaking is a store whose watches end when the test requests it. The test chooses the reason: a lost server, a
// restore, or compacted changes.
type breaking struct {
	*inmemory.Store
	mu     sync.Mutex
	reason error
	cut    context.CancelFunc
	paused chan struct{} // new watches wait until this channel is closed; nil = they do not wait
	forget string        // key whose changes are dropped, as by a defect
}

func (b *breaking) Watch(ctx context.Context, r state.WatchRequest) (state.Watch, error) {
	b.mu.Lock()
	paused := b.paused
	b.mu.Unlock()
	if paused != nil {
		select {
		case <-paused:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	w, err := b.Store.Watch(ctx, r)
	if err != nil {
		return nil, err
	}
	broken, cut := context.WithCancel(context.Background())
	b.mu.Lock()
	b.cut = cut
	b.mu.Unlock()
	return &brokenWatch{w, b, broken}, nil
}

type brokenWatch struct {
	state.Watch
	store  *breaking
	broken context.Context
}

func (w *brokenWatch) Next(ctx context.Context, wait time.Duration) (state.WatchPart, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.broken, cancel)()
	part, err := w.Watch.Next(ctx, wait)
	if w.broken.Err() != nil {
		w.store.mu.Lock()
		defer w.store.mu.Unlock()
		return state.WatchPart{}, w.store.reason
	}
	var kept []state.Change
	for _, c := range part.Changes {
		if w.store.forget == "" || c.Key != "$configuration||"+w.store.forget {
			kept = append(kept, c)
		}
	}
	part.Changes = kept
	return part, err
}

// lose ends the watch with reason. The next watch begins when resume is called.
func (b *breaking) lose(reason error) (resume func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	paused := make(chan struct{})
	b.reason, b.paused = reason, paused
	b.cut()
	return func() { close(paused) }
}

func TestSubscription_SurvivesLossOfItsWatch(t *testing.T) {
	for name, reason := range map[string]error{
		"server lost":        fault.New(fault.Unavailable, "test", "no server answers"),
		"changes not kept":   &state.WatchEnd{Reason: state.WatchCompacted},
		"restored":           &state.WatchEnd{Reason: state.WatchRestored},
		"moved":              &state.WatchEnd{Reason: state.WatchMoved},
		"of another cluster": fault.New(fault.Invalid, "test", "foreign position"),
	} {
		t.Run(name, func(t *testing.T) {
			b := &breaking{Store: inmemory.Open(inmemory.Options{})}
			s := open(t, b)
			w := configurationtest.Written{Writer: s}
			w.Set(t, item("changed", "1"), item("deleted", "1"), item("same", "1"))
			seen := configurationtest.Listen(t, s)
			w.Set(t, item("changed", "2"))
			seen.Value(t, "changed", "2")
			resume := b.lose(reason)
			w.Set(t, item("changed", "3"))
			w.Set(t, item("changed", "4"), item("created", "1"))
			w.Delete(t, "deleted")
			resume()
			seen.Value(t, "changed", "4")
			seen.Value(t, "created", "1")
			seen.Until(t, "the deletion", func() bool { return seen.Deleted["deleted"] })
			w.Set(t, item("end", "1"))
			seen.Value(t, "end", "1")
			if _, delivered := seen.Values["same"]; delivered {
				t.Errorf("a key that did not change was delivered: %v", seen.All)
			}
		})
	}
}

// If the store loses the changes of a key, the tests of this package must find the defect.
func TestSubscription_ForgottenChangeIsNoticed(t *testing.T) {
	b := &breaking{Store: inmemory.Open(inmemory.Options{}), forget: "a"}
	s := open(t, b)
	w := configurationtest.Written{Writer: s}
	seen := configurationtest.Listen(t, s)
	w.Set(t, item("a", "1"))
	w.Set(t, item("b", "1"))
	seen.Value(t, "b", "1")
	if len(seen.Values) != 1 {
		t.Fatal("the defect has no effect, so the test would not find it")
	}
	// A new watch of the mirror compares versions, and so repairs the effect of the defect.
	b.lose(&state.WatchEnd{Reason: state.WatchCompacted})()
	seen.Value(t, "a", "1")
}

// pausing is a store. When it is armed, its next read of items waits until the test has written.
type pausing struct {
	records.Backing
	armed   atomic.Bool
	read    chan struct{} // closed when items were read
	written chan struct{} // closed by the test
}

func (p *pausing) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	items, err := p.Backing.BulkGet(ctx, r)
	if p.armed.CompareAndSwap(true, false) {
		close(p.read)
		<-p.written
	}
	return items, err
}

// An item that changes while a subscription reads the current items is delivered with its new value.
func TestSubscription_InitialItemsReplaceNoNewerChange(t *testing.T) {
	backing := &pausing{Backing: inmemory.Open(inmemory.Options{}), read: make(chan struct{}),
		written: make(chan struct{})}
	s := open(t, backing)
	w := configurationtest.Written{Writer: s}
	w.Set(t, item("a", "old"), item("b", "old"), item("c", "same"))
	other, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		<-backing.read
		w.Set(t, item("a", "new"))
		w.Delete(t, "b")
		for gone := false; !gone; { // all subscriptions receive a change at the same time
			items, err := other.Next(t.Context())
			if err != nil {
				break
			}
			gone = slices.ContainsFunc(items, func(i configuration.Item) bool { return i.Key == "b" })
		}
		close(backing.written)
	}()
	backing.armed.Store(true)
	sub, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{Initial: true})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	got := map[string]string{}
	testutil.Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		items, err := sub.Next(ctx)
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		for _, i := range items {
			got[i.Key] = i.Value
		}
		if got["a"] != "new" || got["b"] != "" || got["c"] != "same" {
			return fmt.Errorf("delivered %v", got)
		}
		return nil
	})
}

func TestStore_NoGoroutineWithoutSubscriptions(t *testing.T) {
	s := open(t, inmemory.Open(inmemory.Options{}))
	before := goleak.IgnoreCurrent()
	sub, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sub.Close()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func item(key, value string) configuration.Item { return configuration.Item{Key: key, Value: value} }

// rewriting is a state store in which all items are written again during a read of several parts.
type rewriting struct {
	*inmemory.Store
	writes  int
	busy    bool
	rewrite func()
}

func (r *rewriting) BulkGet(ctx context.Context, q state.BulkGetRequest) ([]state.Item, error) {
	items, err := r.Store.BulkGet(ctx, q)
	const first = 64 // keys of the first part
	if len(q.Keys) == first && r.writes > 0 && !r.busy {
		r.writes--
		r.busy = true // the write also calls BulkGet
		r.rewrite()
		r.busy = false
	}
	return items, err
}

func TestStore_StrongReadOfManyItemsIsOneState(t *testing.T) {
	for _, writes := range []int{1, 3, 1000} {
		b := &rewriting{Store: inmemory.Open(inmemory.Options{})}
		s := open(t, b)
		w := configurationtest.Written{Writer: s}
		round := 0
		b.rewrite = func() {
			round++
			var items []configuration.Item
			for i := range 100 {
				items = append(items, item(fmt.Sprintf("key%d", i), fmt.Sprint(round)))
			}
			w.Set(t, items...)
		}
		b.rewrite()
		b.writes = writes
		found, err := s.Get(t.Context(), configuration.GetRequest{Strong: true})
		if writes == 1000 {
			if !fault.Is(err, fault.Overloaded) {
				t.Errorf("items that always change: %v", err)
			}
			continue
		}
		if err != nil || len(found.Items) != 100 {
			t.Fatal(len(found.Items), err)
		}
		for _, i := range found.Items {
			if i.Value != found.Items[0].Value {
				t.Fatalf("%s is from round %s, another is from round %s", i.Key, i.Value, found.Items[0].Value)
			}
		}
	}
}
