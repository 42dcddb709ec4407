package outside_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/testutil"
)

// reader is a fake database. Each read waits until the test lets it continue.
type reader struct {
	begun chan string
	goOn  chan struct{}
	mu    sync.Mutex
	many  [][]string
	fail  bool
}

func (r *reader) ReadOne(ctx context.Context, key string) (state.Item, error) {
	r.begun <- key
	select {
	case <-r.goOn:
		return state.Item{Key: key, ETag: "one"}, nil
	case <-ctx.Done():
		return state.Item{}, ctx.Err()
	}
}

func (r *reader) ReadMany(_ context.Context, keys []string) ([]state.Item, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.many = append(r.many, slices.Clone(keys))
	if r.fail {
		return nil, errors.New("refused")
	}
	out := make([]state.Item, len(keys))
	values := map[string][]byte{}
	for i, key := range keys {
		if values[key] == nil {
			values[key] = []byte("value")
		}
		out[i] = state.Item{Key: key, ETag: "many", Value: values[key]} // a database may return the same memory twice
	}
	return out, nil
}

// TestGatherer_ConcurrentReadsShareRoundTrip blocks two reads. The gatherer must read the keys of later calls
// together.
func TestGatherer_ConcurrentReadsShareRoundTrip(t *testing.T) {
	for _, fail := range []bool{false, true} {
		r := &reader{begun: make(chan string, 100), goOn: make(chan struct{}), fail: fail}
		g := outside.NewGatherer(r)
		var wg sync.WaitGroup
		get := func(key, etag string) {
			wg.Go(func() {
				item, err := g.Get(t.Context(), key)
				if err != nil || item.Key != key || item.ETag != etag {
					t.Errorf("Get(%q) = %+v, %v; want ETag %q", key, item, err, etag)
				}
			})
		}
		get("a", "one")
		get("b", "one")
		<-r.begun
		<-r.begun
		want := "many"
		if fail {
			want = "one" // each call reads its key again alone
		}
		for _, key := range []string{"c", "d", "e"} {
			get(key, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		testutil.Eventually(t, func() error { // wait until the callers wait
			if n := outside.Waiting(g); n != 3 {
				return errors.New("not all wait")
			}
			return nil
		})
		if _, err := g.Get(ctx, "given up"); !errors.Is(err, context.Canceled) {
			t.Errorf("a read that was given up: %v", err)
		}
		close(r.goOn)
		wg.Wait()
		g.Wait()
		r.mu.Lock()
		got := slices.Concat(r.many...)
		slices.Sort(got)
		if !slices.Equal(got, []string{"c", "d", "e"}) || len(r.many) > 2 {
			t.Errorf("the reads were %q", r.many)
		}
		r.mu.Unlock()
		for len(r.begun) > 0 {
			<-r.begun
		}
		if item, err := g.Get(t.Context(), "alone"); err != nil || item.ETag != "one" {
			t.Errorf("a later read = %+v, %v", item, err)
		}
	}
}

// TestGatherer_WaitsForTheReadAfterAFailedOne blocks the read of a single key after a failed read of several keys.
func TestGatherer_WaitsForTheReadAfterAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{begun: make(chan string, 100), goOn: make(chan struct{}), fail: true}
		g := outside.NewGatherer(r)
		for _, key := range []string{"a", "b", "c"} {
			go func() { _, _ = g.Get(t.Context(), key) }()
		}
		synctest.Wait() // two keys are read, and one waits
		r.goOn <- struct{}{}
		r.goOn <- struct{}{}
		synctest.Wait() // the key that waited is read by itself
		waited := false
		go func() {
			g.Wait()
			waited = true
		}()
		synctest.Wait()
		if n := len(r.begun); n != 3 || waited {
			t.Errorf("%d reads of single keys began; Wait returned during a read: %v", n, waited)
		}
		r.goOn <- struct{}{}
		synctest.Wait()
		if !waited {
			t.Error("Wait did not return after the last read")
		}
	})
}

// TestGatherer_CallersDoNotShareValues reads one key several times in one round trip. Each caller modifies its value,
// as decryption does.
func TestGatherer_CallersDoNotShareValues(t *testing.T) {
	r := &reader{begun: make(chan string, 100), goOn: make(chan struct{})}
	g := outside.NewGatherer(r)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { _, _ = g.Get(t.Context(), "first") })
	}
	<-r.begun
	<-r.begun
	const callers = 5
	items := make([]state.Item, callers)
	for i := range callers {
		wg.Go(func() {
			var err error
			items[i], err = g.Get(t.Context(), "same")
			testutil.Must(t, err)
		})
	}
	testutil.Eventually(t, func() error {
		if n := outside.Waiting(g); n != callers {
			return errors.New("not all wait")
		}
		return nil
	})
	close(r.goOn)
	wg.Wait()
	g.Wait()
	for i := range items {
		if string(items[i].Value) != "value" {
			t.Fatalf("caller %d got %q, which another caller has changed", i, items[i].Value)
		}
		copy(items[i].Value, "XXXXX")
	}
}

// TestGatherer_WaitsBesideNewReads calls Wait repeatedly while other goroutines call Get, as Close of a store does
// under load. The race detector would report a Wait that is not safe beside Get.
func TestGatherer_WaitsBesideNewReads(t *testing.T) {
	g := outside.NewGatherer(yielding{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if _, err := g.Get(t.Context(), "key"); err != nil {
					t.Errorf("Get: %v", err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for {
		g.Wait()
		select {
		case <-ended:
			if n := outside.Waiting(g); n != 0 {
				t.Errorf("%d reads still wait", n)
			}
			return
		default:
		}
	}
}

// yielding is a fake database whose reads let other goroutines run.
type yielding struct{}

func (yielding) ReadOne(_ context.Context, key string) (state.Item, error) {
	runtime.Gosched()
	return state.Item{Key: key}, nil
}

func (yielding) ReadMany(_ context.Context, keys []string) ([]state.Item, error) {
	runtime.Gosched()
	return make([]state.Item, len(keys)), nil
}
