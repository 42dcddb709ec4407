package admission_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

const mib = 1 << 20

// brief returns options with which large requests wait no longer than small ones.
func brief(bytes int64) admission.Options {
	return admission.Options{
		Bytes: bytes, LargePatience: admission.DefaultPatience, LargeTarget: admission.DefaultTarget}
}

func TestBudget_AdmitsWithinItsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 40 * mib})
		for range 3 {
			if err := b.Acquire(t.Context(), 10*mib); err != nil {
				t.Fatal(err)
			}
		}
		if b.TryAcquire(10 * mib) {
			t.Fatal("more than the size was admitted")
		}
		if !b.TryAcquire(admission.SmallRequest) {
			t.Error("a small request found no room beside large ones")
		}
		start := time.Now()
		err := b.Acquire(t.Context(), 10*mib)
		if !fault.Is(err, fault.Overloaded) {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(start); waited != admission.DefaultLargePatience {
			t.Errorf("refused after %s", waited)
		}
		b.Release(10 * mib)
		if err := b.Acquire(t.Context(), 10*mib); err != nil {
			t.Error(err)
		}
	})
}

func TestBudget_ServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 40 * mib})
		_ = b.Acquire(t.Context(), 30*mib)
		var mu sync.Mutex
		var order []int64
		var all sync.WaitGroup
		sizes := []int64{28 * mib, 20 * mib, 25 * mib} // no two of them fit together
		for _, size := range sizes {
			all.Go(func() {
				if err := b.Acquire(t.Context(), size); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, size)
				mu.Unlock()
				<-time.After(time.Millisecond) // in virtual time
				b.Release(size)
			})
			synctest.Wait()
		}
		b.Release(30 * mib)
		all.Wait()
		if !slices.Equal(order, sizes) {
			t.Errorf("served in the order %v", order)
		}
	})
}

func TestBudget_AdmitsARequestLargerThanItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 4 * mib})
		if err := b.Acquire(t.Context(), 100*mib); err != nil {
			t.Fatal(err)
		}
		if b.TryAcquire(mib) {
			t.Error("another request was admitted beside a request larger than the budget")
		}
		b.Release(100 * mib)
		if !b.TryAcquire(3 * mib) {
			t.Error("the budget is not free after the release")
		}
	})
}

// TestBudget_RefusesEarlyWhileItsQueuePersists checks the controlled delay. Requests of a burst wait for the
// patience, and requests in a queue that persists wait for the target. After the queue was empty, the next requests
// are a burst again.
func TestBudget_RefusesEarlyWhileItsQueuePersists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(brief(4 * mib))
		_ = b.Acquire(t.Context(), 3*mib)
		waits := func() time.Duration {
			start := time.Now()
			if err := b.Acquire(t.Context(), mib); !fault.Is(err, fault.Overloaded) {
				t.Errorf("got %v", err)
			}
			return time.Since(start)
		}
		var all sync.WaitGroup
		for i := range 20 { // the queue is never empty for 300 ms
			all.Go(func() {
				<-time.After(time.Duration(i) * 15 * time.Millisecond)
				want := admission.DefaultPatience
				if time.Duration(i)*15*time.Millisecond > admission.DefaultPatience {
					want = admission.DefaultTarget
				}
				got := waits()
				if want == admission.DefaultTarget {
					const mean = admission.DefaultPenalty
					if penalty := got - want; penalty < mean/2 || penalty >= 3*mean/2 {
						t.Errorf("the refusal of request %d came after %s", i, got)
					}
				} else if got != want {
					t.Errorf("request %d waited for %s", i, got)
				}
			})
		}
		all.Wait()
		if got := waits(); got != admission.DefaultPatience {
			t.Errorf("after an empty queue a request waited for %s", got)
		}
	})
}

func TestBudget_WaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 4 * mib})
		_ = b.Acquire(t.Context(), 3*mib)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := b.Acquire(ctx, mib); !fault.Is(err, fault.Overloaded) || time.Since(start) != time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestBudget_NilAdmitsEverything(t *testing.T) {
	var b *admission.Budget
	if err := b.Acquire(t.Context(), 1<<40); err != nil || !b.TryAcquire(1<<40) {
		t.Error(err)
	}
	b.Release(1 << 40)
}

func TestTransfer_SlowestIsCutWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(brief(4 * mib))
		type client struct {
			share    admission.Share
			transfer *admission.Transfer
		}
		var clients [3]client // the first is quick, the second is slow, the third is silent
		for i := range clients {
			c := &clients[i]
			c.share = b.Share()
			if !c.share.TryAdd(mib) {
				t.Fatal("no room")
			}
			c.transfer = c.share.Transfer(releaseOnce(&c.share))
		}
		for range 10 {
			clients[0].transfer.Moved(mib)
			clients[1].transfer.Moved(1)
			<-time.After(admission.SlowAfter / 5)
		}
		steps := [][]bool{{false, false, false}, {false, false, true}, {false, true, true}, {false, true, true}}
		for i, want := range steps {
			if i > 0 {
				share := b.Share()
				if err := share.Add(t.Context(), mib); (err == nil) != (i < 3) {
					t.Errorf("request %d: %v", i, err)
				}
				clients[0].transfer.Moved(mib)
				clients[1].transfer.Moved(1)
			}
			for j := range clients {
				if got := clients[j].transfer.Cut(); got != want[j] {
					t.Errorf("after %d requests waited, client %d: cut %v", i, j, got)
				}
			}
		}
		clients[0].transfer.End()
		<-time.After(time.Minute)
		if err := b.Acquire(t.Context(), 3*mib); err == nil || clients[0].transfer.Cut() {
			t.Errorf("a transfer that has ended was cut: %v", err)
		}
	})
}

func TestShare_ReleasesWhatItHolds(t *testing.T) {
	b := admission.New(admission.Options{Bytes: 8 * mib})
	s := b.Share()
	for _, n := range []int64{100 << 20, admission.SmallRequest, 1} {
		if !s.TryAdd(n) {
			t.Fatalf("no room for %d", n)
		}
	}
	if !s.Held() || b.TryAcquire(mib) {
		t.Error("nothing is held")
	}
	s.Release()
	s.Release()
	if s.Held() || !b.TryAcquire(6*mib) || !b.TryAcquire(admission.SmallRequest) {
		t.Error("not all was released")
	}
}

func TestBudget_ReportsABurstAtItsStartAndAtItsEnd(t *testing.T) {
	b := admission.New(admission.Options{Bytes: 8 * mib})
	b.TryAcquire(mib)
	if b.Burst() {
		t.Error("an eighth of the budget is no burst")
	}
	b.TryAcquire(3 * mib)
	if !b.Burst() || b.Burst() {
		t.Error("a burst is not reported once")
	}
	b.Release(3 * mib)
	if !b.Burst() || b.Burst() {
		t.Error("the end of a burst is not reported once")
	}
}

// disk serves one write after the other.
type disk struct {
	service time.Duration
	mu      sync.Mutex
	free    time.Time // when the last accepted write will have ended
}

func (d *disk) write() {
	d.mu.Lock()
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(d.service)
	done := d.free
	d.mu.Unlock()
	<-time.After(time.Until(done))
}

// stall keeps the disk busy for a while.
func (d *disk) stall(length time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(length)
}

// served is an accepted write: when it ended and how long it took.
type served struct {
	at, took time.Duration
	waited   time.Duration
}

// offer sends writes for the given length of time, at a rate of arrivals per second. A refused write is repeated after
// retry; 0 = never.
func offer(
	t *testing.T, b *admission.Budget, d *disk, size int64, arrivals int, retry, length time.Duration,
) (out []served, refused int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for range int(length.Seconds() * float64(arrivals)) {
		all.Go(func() {
			for again := true; again && time.Since(began) < length; again = retry > 0 {
				start, share := time.Now(), b.Share()
				if err := share.Add(t.Context(), size); err == nil {
					waited := time.Since(start)
					share.Work()
					d.write()
					share.Release()
					mu.Lock()
					out = append(out, served{time.Since(began), time.Since(start), waited})
					mu.Unlock()
					return
				}
				mu.Lock()
				refused++
				mu.Unlock()
				<-time.After(retry)
			}
		})
		<-time.After(time.Second / time.Duration(arrivals))
	}
	all.Wait()
	return out, refused
}

// within returns the rate per second and the 99th percentile of the duration of the writes that ended between two
// times.
func within(all []served, from, until time.Duration) (goodput float64, p99 time.Duration) {
	var took []time.Duration
	for _, s := range all {
		if s.at >= from && s.at < until {
			took = append(took, s.took)
		}
	}
	if len(took) == 0 {
		return 0, 0
	}
	slices.Sort(took)
	return float64(len(took)) / (until - from).Seconds(), took[len(took)*99/100]
}

// TestBudget_GoodputUnderOverload sends more writes than the disk can serve, in virtual time. Most of the capacity
// must be used, and accepted writes must end soon. Clients that retry at once are the harder case. Without the limit
// of pace, small requests would wait for seconds.
func TestBudget_GoodputUnderOverload(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	for name, c := range map[string]struct {
		size     int64
		capacity int           // writes per second
		arrivals int           // writes per second
		retry    time.Duration // after a refusal; 0 = never
		settle   time.Duration // large requests may wait for long at first
	}{
		"small, as much as can be served":     {size: 200 << 10, capacity: 160, arrivals: 160},
		"small, twice as much":                {size: 200 << 10, capacity: 160, arrivals: 320},
		"small, twice as much, with retries":  {size: 200 << 10, capacity: 160, arrivals: 320, retry: time.Millisecond},
		"small, ten times as much":            {size: 200 << 10, capacity: 160, arrivals: 1600},
		"small, twice what a slow disk takes": {size: 64 << 10, capacity: 50 * 4, arrivals: 100 * 4},
		"large, twice as much": {size: 3 * mib, capacity: 160, arrivals: 320,
			settle: admission.DefaultLargePatience},
		"large, twice as much, with many retries": {size: 3 * mib, capacity: 160, arrivals: 320,
			retry: time.Millisecond, settle: admission.DefaultLargePatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := admission.New(admission.Options{})
				d := &disk{service: time.Second / time.Duration(c.capacity)}
				from, until := 8*time.Second+c.settle, 16*time.Second+c.settle
				all, refused := offer(t, b, d, c.size, c.arrivals, c.retry, until)
				goodput, slow := within(all, from, until)
				t.Logf("%.0f a second of %d, p99 %s, %d refused", goodput, c.capacity, slow, refused)
				if goodput < 0.8*float64(c.capacity) || slow > time.Second {
					t.Errorf("%.0f a second of %d, p99 %s", goodput, c.capacity, slow)
				}
			})
		})
	}
}

// TestBudget_DiskStallIsNoOverload stops the disk for two seconds. Admitted writes wait for the disk. Soon after the
// stall, the rate of writes must be as high as before.
func TestBudget_DiskStallIsNoOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{})
		d := &disk{service: 5 * time.Millisecond}
		time.AfterFunc(10*time.Second, func() { d.stall(2 * time.Second) })
		all, refused := offer(t, b, d, 200<<10, 180, 0, 20*time.Second)
		stalled := 0
		for _, s := range all {
			if s.waited < admission.DefaultPatience && s.took > time.Second {
				stalled++
			}
		}
		if stalled < 100 {
			t.Errorf("%d writes waited for the disk", stalled)
		}
		if goodput, slow := within(all, 14*time.Second, 20*time.Second); goodput < 160 || slow > time.Second {
			t.Errorf("after the stall %.0f a second of 180, p99 %s", goodput, slow)
		}
		if refused > 2*180+90 { // the writes that arrived during the stall and shortly after
			t.Errorf("%d were refused", refused)
		}
		t.Logf("%d waited for the disk, %d were refused", stalled, refused)
	})
}

// TestBudget_SlowDiskAloneDoesNotLowerBound checks that a slow disk alone does not lower the bound, so that all of the
// memory is free for a burst. The bound falls only when writes wait for each other.
func TestBudget_SlowDiskAloneDoesNotLowerBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 32 * mib})
		for range 20 {
			share := b.Share()
			if err := share.Add(t.Context(), 200<<10); err != nil {
				t.Fatal(err)
			}
			share.Work()
			<-time.After(time.Second)
			share.Release()
		}
		for i := range 8 * mib / admission.SmallRequest {
			if !b.TryAcquire(admission.SmallRequest) {
				t.Fatalf("no room for request %d", i)
			}
		}
	})
}

// TestBudget_LargeRequestsWaitForOthers sends a burst of large requests that takes seconds to serve. All must be
// admitted.
func TestBudget_LargeRequestsWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{})
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				share := b.Share()
				if err := share.Add(t.Context(), 10*mib); err != nil {
					t.Error(err)
				}
				<-time.After(500 * time.Millisecond)
				share.Release()
			})
		}
		all.Wait()
	})
}

// TestShare_DoesNotWaitForItself acquires more than all memory for large requests with one share. It must not wait.
func TestShare_DoesNotWaitForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 4 * mib})
		share := b.Share()
		start := time.Now()
		for _, bytes := range []int64{2 * mib, 10 * mib, 10 * mib, admission.SmallRequest} {
			if err := share.Add(t.Context(), bytes); err != nil || time.Since(start) > 0 {
				t.Errorf("%d bytes: %v after %s", bytes, err, time.Since(start))
			}
		}
		share.Release()
		if !b.TryAcquire(3*mib) || !b.TryAcquire(admission.SmallRequest) {
			t.Error("not all was released")
		}
	})
}

// TestShare_AddUsedBoundsTheWaitingBytes checks that bytes in use wait only up to a bound, because the budget does not
// count them yet.
func TestShare_AddUsedBoundsTheWaitingBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 64 * mib})
		others := b.Share()
		if !others.TryAdd(48 * mib) {
			t.Fatal("no room")
		}
		add := func(bytes int64) error {
			share := b.Share()
			defer share.Release()
			return share.AddUsed(t.Context(), bytes)
		}
		var waiting sync.WaitGroup
		for _, bytes := range []int64{40 * mib, 1} { // the first exceeds the bound, but waits alone
			waiting.Go(func() {
				if err := add(bytes); err != nil {
					t.Errorf("%d bytes: %v", bytes, err)
				}
			})
			synctest.Wait()
		}
		start := time.Now()
		if err := add(mib); !fault.Is(err, fault.Overloaded) || time.Since(start) > 0 {
			t.Errorf("beyond the bound: %v after %s", err, time.Since(start))
		}
		others.Release()
		waiting.Wait()
		if err := add(mib); err != nil {
			t.Errorf("after the others: %v", err)
		}
		if !b.TryAcquire(48*mib) || !b.TryAcquire(admission.SmallRequest) {
			t.Error("not all was released")
		}
	})
}

// TestTransfer_SlowOnesAreCutWhileARequestWaits checks that a large request gets the memory of silent clients in time.
func TestTransfer_SlowOnesAreCutWhileARequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := admission.New(admission.Options{Bytes: 4 * mib})
		for range 3 {
			share := b.Share()
			if !share.TryAdd(mib) {
				t.Fatal("no room")
			}
			share.Transfer(releaseOnce(&share))
		}
		start, share := time.Now(), b.Share()
		if err := share.Add(t.Context(), 3*mib); err != nil || time.Since(start) > 5*admission.SlowAfter {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// releaseOnce returns the cut function of a client whose request ends when its transfer is aborted. It may be called
// several times.
func releaseOnce(s *admission.Share) (cut func()) {
	var once sync.Once
	return func() { once.Do(func() { go s.Release() }) }
}
