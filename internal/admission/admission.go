// Package admission bounds the memory of the requests that a node is serving. The package owns the memory budget, the
// queues of requests that wait for memory, and the rule that refuses waiting requests when the node is overloaded.
//
// A request waits in a queue until memory is free. When the node is overloaded, waiting requests are refused after a
// short time. The package is independent of protocols. It starts no goroutines, but uses timers of package time.
package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/quorate/quorate/internal/fault"
)

// The defaults of Options.
const (
	DefaultBytes         = 128 << 20
	DefaultPatience      = 100 * time.Millisecond
	DefaultTarget        = 20 * time.Millisecond
	DefaultLargePatience = 5 * time.Second
	DefaultLargeTarget   = 500 * time.Millisecond
	DefaultPenalty       = 500 * time.Millisecond
)

// SmallRequest is the maximum size of a small request, in bytes. A part of the budget is reserved for small requests,
// so large requests never keep them waiting.
const SmallRequest = 512 << 10

// Options configure a Budget.
type Options struct {
	Bytes    int64         // size of the budget; 0 = DefaultBytes
	Patience time.Duration // maximum wait of a request while the queue is short-lived; 0 = DefaultPatience
	Target   time.Duration // maximum wait of a request while the queue persists; 0 = DefaultTarget
	Penalty  time.Duration // average delay of a refusal while the queue persists; 0 = DefaultPenalty

	// LargePatience and LargeTarget are Patience and Target for large requests. Few large requests fit, and each
	// takes long. So even in a burst that the node can serve, some of them wait for seconds.
	LargePatience time.Duration // 0 = DefaultLargePatience
	LargeTarget   time.Duration // 0 = DefaultLargeTarget

	Name       string                // label of the budget in metrics, such as "requests"
	Registerer prometheus.Registerer // nil = no metrics
}

// Budget is an amount of memory that concurrent requests share. A request acquires bytes of the budget before it reads
// or sends a body, and releases them when the request ends. A quarter of the budget is reserved for small requests.
// Small and large requests have separate first-in, first-out queues. A Budget is safe for concurrent use. A nil
// *Budget admits everything.
type Budget struct {
	small, large lane
	waiting      atomic.Int64 // bytes for which calls of Share.AddUsed wait
}

// New returns a Budget and registers its metrics. Budgets with different names can share a registerer.
func New(o Options) *Budget {
	if o.Bytes <= 0 {
		o.Bytes = DefaultBytes
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.Target <= 0 {
		o.Target = DefaultTarget
	}
	if o.LargePatience <= 0 {
		o.LargePatience = DefaultLargePatience
	}
	if o.LargeTarget <= 0 {
		o.LargeTarget = DefaultLargeTarget
	}
	if o.Penalty <= 0 {
		o.Penalty = DefaultPenalty
	}
	b := &Budget{}
	m := newMetrics(o.Name, o.Registerer)
	b.small.init(o, o.Bytes/4, m, "small")
	b.small.pace.init(b.small.size)
	o.Patience, o.Target = o.LargePatience, o.LargeTarget
	b.large.init(o, o.Bytes-o.Bytes/4, m, "large")
	return b
}

// Acquire takes bytes from the budget. If too few bytes are free, it waits in a queue for up to Options.Patience. If
// this time passes or ctx ends, Acquire takes nothing and returns fault.Overloaded.
//
// The node is overloaded if requests have been in the queue without a break for longer than Options.Patience. Acquire
// then waits for at most Options.Target, and delays an error by about Options.Penalty.
//
// Large requests have their own queue, with LargePatience and LargeTarget, and share three quarters of the budget. A
// request for more than that takes all of these three quarters.
func (b *Budget) Acquire(ctx context.Context, bytes int64) error {
	if b == nil || bytes <= 0 {
		return nil
	}
	l := b.lane(bytes)
	return l.acquire(ctx, bytes, l.patience)
}

// TryAcquire is Acquire without waiting. It reports whether the bytes were taken.
func (b *Budget) TryAcquire(bytes int64) bool {
	return b == nil || bytes <= 0 || b.lane(bytes).tryAcquire(bytes)
}

// Release gives the bytes of one call of Acquire or TryAcquire back to the budget. bytes must be the same as in that
// call.
func (b *Budget) Release(bytes int64) {
	if b != nil && bytes > 0 {
		b.lane(bytes).release(bytes)
	}
}

// Burst reports whether requests have acquired or released more than a quarter of the budget since the previous call
// of Burst. Releases count too, because released memory becomes garbage for the collector.
func (b *Budget) Burst() bool {
	if b == nil {
		return false
	}
	acquired := b.small.acquired.Swap(0) + b.large.acquired.Swap(0)
	released := b.small.released.Swap(0) + b.large.released.Swap(0)
	return max(acquired, released) > (b.small.size+b.large.size)/4
}

func (b *Budget) lane(bytes int64) *lane {
	if bytes <= SmallRequest && bytes <= b.small.size {
		return &b.small
	}
	return &b.large
}

// lane is a part of the budget with its own queue.
type lane struct {
	size                      int64
	patience, target, penalty time.Duration
	bytes                     *semaphore.Weighted

	limit   prometheus.Gauge
	inUse   prometheus.Gauge
	waiting prometheus.Gauge
	refused prometheus.Counter
	cuts    prometheus.Counter

	held atomic.Int64 // requests whose refusal is delayed
	used atomic.Int64 // bytes in use

	acquired, released atomic.Int64 // bytes since the last call of Burst

	mu        sync.Mutex // guards what follows
	queue     int        // requests that wait
	since     time.Time  // when a request last joined the empty queue
	transfers map[*Transfer]struct{}
	pace      pace  // limits the bytes in use by small requests; unused in the large lane
	withheld  int64 // bytes that the pace has taken from the semaphore, so that no request can use them
}

func (l *lane) init(o Options, size int64, m *metrics, name string) {
	l.size, l.patience, l.target, l.penalty = size, o.Patience, o.Target, o.Penalty
	l.bytes, l.transfers = semaphore.NewWeighted(size), map[*Transfer]struct{}{}
	l.inUse, l.waiting = m.inUse.WithLabelValues(name), m.waiting.WithLabelValues(name)
	l.refused, l.cuts = m.refused.WithLabelValues(name), m.cuts.WithLabelValues(name)
	l.limit = m.limit.WithLabelValues(name)
	l.limit.Set(float64(size))
}

func (l *lane) tryAcquire(bytes int64) bool {
	bytes = min(bytes, l.size)
	if !l.bytes.TryAcquire(bytes) {
		return false
	}
	l.took(bytes)
	return true
}

// acquire is Budget.Acquire for one lane. It waits for at most patience, and for at most the time that join returns.
func (l *lane) acquire(ctx context.Context, bytes int64, patience time.Duration) error {
	if l.tryAcquire(bytes) {
		return nil
	}
	bytes = min(bytes, l.size)
	usual, persists := l.join()
	patience = min(patience, usual)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stop := func() {}
	if patience > SlowAfter {
		stop = l.cutWhileWaiting()
	}
	err := l.bytes.Acquire(limited, bytes)
	stop()
	l.leave()
	if err != nil {
		l.refused.Inc()
		if persists {
			l.holdBack(ctx)
		}
		return &fault.Error{Code: fault.Overloaded, Op: "admission.Acquire",
			Msg: "too many requests are in work: the memory of the node for them is in use",
			Hint: "retry after a moment; if it lasts, send fewer or smaller requests at a time, or give the node " +
				"more memory (--memory-limit)", Err: err}
	}
	l.took(bytes)
	return nil
}

func (l *lane) took(bytes int64) {
	l.inUse.Add(float64(bytes))
	l.acquired.Add(bytes)
	l.used.Add(bytes)
}

func (l *lane) release(bytes int64) {
	bytes = min(bytes, l.size)
	l.inUse.Sub(float64(bytes))
	l.used.Add(-bytes)
	l.released.Add(bytes)
	l.bytes.Release(l.withhold(bytes))
}

// The bounds of the delay of refusals.
const (
	refusalsPerPenalty = 500 // number of delayed refusals for which the average delay grows by Options.Penalty
	longestPenalty     = 6   // maximum of the average delay, as a multiple of Options.Penalty
)

// holdBack delays the refusal of a request, so that clients that retry at once do not keep the processor busy. The
// delay has jitter. It grows with the number of refusals that are being delayed, and ends early if ctx ends.
func (l *lane) holdBack(ctx context.Context) {
	held := l.held.Add(1)
	defer l.held.Add(-1)
	mean := l.penalty * time.Duration(min(max(held/refusalsPerPenalty, 1), longestPenalty))
	wait := time.NewTimer(mean/2 + rand.N(mean)) //nolint:gosec // not a secret
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// join adds a request to the queue, and returns how long the request may wait. Normally, this time is l.patience. If
// requests have been in the queue without a break for longer than l.patience, the time is the shorter l.target, and
// persists is true. The algorithm is from Ben Maurer, "Fail at Scale", ACM Queue 13(8), 2015, after CoDel (RFC 8289).
func (l *lane) join() (patience time.Duration, persists bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == 0 {
		l.since = now
	}
	l.queue++
	l.waiting.Inc()
	l.pace.full = true
	l.cutSlowestLocked(now)
	if now.Sub(l.since) > l.patience {
		return l.target, true
	}
	return l.patience, false
}

func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue--
	l.waiting.Dec()
}

// Size returns the size of a node's budget in bytes. The parameter limit is the node's memory limit in bytes. The
// budget is an eighth of this limit, but at least 32 MiB and at most 128 MiB. A larger budget would not increase the
// throughput, because the log and the disk limit it.
func Size(limit int64) int64 { return min(max(limit/8, 32<<20), DefaultBytes) }
