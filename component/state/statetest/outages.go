package statetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/internal/testutil"
)

// Recording records the calls of concurrent clients of a store while the store's server fails and recovers. Calls may
// fail. The store may have executed a call that failed with fault.Indeterminate, but no call that failed with another
// code.
type Recording struct {
	t     *testing.T
	store state.Store
	keys  []string
	stop  context.CancelFunc
	ended sync.WaitGroup

	history *history.Keys

	mu     sync.Mutex // guards the fields below
	done   int
	failed map[fault.Code]int
}

// Record starts clients that read and write a few keys. The clients run until Check is called.
func Record(t *testing.T, store state.Store, keys ...string) *Recording {
	const clients = 6
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &Recording{t: t, store: store, keys: keys, stop: stop,
		history: history.NewKeys(history.WallClock()), failed: map[fault.Code]int{}}
	for id := range clients {
		r.ended.Go(func() { r.client(ctx, id) })
	}
	t.Cleanup(func() {
		stop()
		r.ended.Wait()
	})
	return r
}

// More waits until n more calls were done.
func (r *Recording) More(n int) {
	r.t.Helper()
	r.mu.Lock()
	goal := r.done + n
	r.mu.Unlock()
	r.wait(func() (int, string) { return goal - r.done, "calls" })
}

// Failed waits until n calls since the start of the recording have failed with one of the codes.
func (r *Recording) Failed(n int, codes ...fault.Code) {
	r.t.Helper()
	r.wait(func() (int, string) {
		left := n
		for _, code := range codes {
			left -= r.failed[code]
		}
		return left, fmt.Sprintf("calls that fail with %v", codes)
	})
}

func (r *Recording) wait(left func() (int, string)) {
	r.t.Helper()
	testutil.Eventually(r.t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n, what := left(); n > 0 {
			return fmt.Errorf("%d %s are missing; so far %d were done and failed: %v", n, what, r.done, r.failed)
		}
		return nil
	})
}

// Check stops the clients and reads all keys. It fails the test unless the recorded history is linearizable, that is,
// unless some sequential order of the calls explains all answers.
func (r *Recording) Check() {
	r.t.Helper()
	r.stop()
	r.ended.Wait()
	for _, key := range r.keys {
		testutil.Eventually(r.t, func() error { return r.call(0, keyCall{key: key, kind: 'g'}, nil) })
	}
	if err := r.history.Check(time.Minute, os.TempDir()); err != nil {
		r.t.Error(err)
	}
	r.t.Logf("%s; failed: %v", r.history, r.failed)
}

// client makes calls until ctx ends.
func (r *Recording) client(ctx context.Context, id int) {
	const pause = 5 * time.Millisecond // after an error, so that an outage does not fill the recording
	source := rand.New(rand.NewPCG(1, uint64(id)))
	seen := map[string]seenValue{}
	for i := 0; ctx.Err() == nil; i++ {
		in := keyCall{key: r.keys[source.IntN(len(r.keys))], kind: "ggscuuuudx"[source.IntN(10)],
			value: strconv.Itoa(id) + "-" + strconv.Itoa(i)}
		if in.seen = seen[in.key]; in.seen.etag == "" && (in.kind == 'u' || in.kind == 'x') {
			in.kind = 'g'
		}
		if r.call(id, in, seen) == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// call makes one call and records it. It notes the value and its ETag in seen.
func (r *Recording) call(id int, in keyCall, seen map[string]seenValue) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 10*time.Second)
	defer cancel()
	begin := r.history.Now()
	got, err := in.perform(ctx, r.store)
	out := history.KeyAnswer{Values: []string{got.value}}
	if fault.Is(err, fault.Conflict) {
		out, err = history.KeyAnswer{Conflict: true}, nil
		delete(seen, in.key)
	} else if err == nil && seen != nil {
		if seen[in.key] = got; got.etag == "" {
			delete(seen, in.key) // a later read returns the ETag
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[fault.CodeOf(err)]++
		switch code := fault.CodeOf(err); code {
		case fault.Indeterminate:
			out = history.KeyAnswer{Unknown: true}
		case fault.Unavailable, fault.Timeout, fault.ReadOnly, fault.Overloaded:
			return err
		default:
			r.t.Errorf("a call failed: %v (%s)", err, code)
			return err
		}
	} else {
		r.done++
		r.history.ETag(in.key, 0, got.etag, got.value)
	}
	r.history.Add(id, begin, in.record(), out)
	return err
}

// CheckOutage tests the errors of a store while its server is down. The functions stop and restart control the store's
// only server. While it is down, writes must fail with fault.Unavailable or fault.Indeterminate. A read must fail with
// fault.Unavailable, and its error text must contain message.
func CheckOutage(t *testing.T, store state.Store, stop, restart func(), message string) {
	t.Helper()
	ctx := t.Context()
	testutil.Must(t, Set(ctx, store, Put("a||k", "1")))
	stop()
	for range 2 {
		err := Set(ctx, store, Put("a||k", "1"))
		if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Indeterminate) {
			t.Errorf("a write without a server: %v with code %q", err, fault.CodeOf(err))
		}
	}
	_, err := Get(ctx, store, "a||k")
	WantFault(t, err, fault.Unavailable, message)
	restart()
	testutil.Eventually(t, func() error { return Set(ctx, store, Put("a||k", "2")) })
	WantValue(t, store, "a||k", "2")
}
