package admission

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Share is the part of a budget that one request has acquired. The zero Share belongs to no budget and admits
// everything. A Share is not safe for concurrent use.
type Share struct {
	budget       *Budget
	small, large int64
	worked       time.Time // when Work was called
}

// Share returns an empty share of b.
func (b *Budget) Share() Share { return Share{budget: b} }

// Add acquires more bytes for the share. It returns the errors of Budget.Acquire. After an error, the share still has
// its previous bytes. If the share already has bytes, Add waits only as long as a small request would, because other
// requests may be waiting for these bytes.
func (s *Share) Add(ctx context.Context, bytes int64) error {
	if s.budget == nil {
		return nil
	}
	if bytes = s.fit(bytes); bytes <= 0 {
		return nil
	}
	l := s.budget.lane(bytes)
	patience := l.patience
	if s.Held() {
		patience = s.budget.small.patience
	}
	if err := l.acquire(ctx, bytes, patience); err != nil {
		return err
	}
	s.note(bytes)
	return nil
}

// maxUsed is the maximum number of bytes for which calls of Share.AddUsed wait at a time.
const maxUsed = 32 << 20

// AddUsed is Add for bytes that are already in use, such as those of an answer. The budget does not count these bytes
// while AddUsed waits. Therefore the total size of all waiting calls is limited to maxUsed. If a call would exceed this
// limit, AddUsed returns fault.Overloaded at once. A call that would be the only waiting one may exceed the limit.
func (s *Share) AddUsed(ctx context.Context, bytes int64) error {
	if s.TryAdd(bytes) {
		return nil
	}
	waiting := &s.budget.waiting
	defer waiting.Add(-bytes)
	if all := waiting.Add(bytes); all > maxUsed && all > bytes {
		s.budget.lane(bytes).refused.Inc()
		return fault.New(fault.Overloaded, "admission.AddUsed",
			"too many large answers wait for memory, because clients read slowly")
	}
	return s.Add(ctx, bytes)
}

// fit returns how many of the given bytes the share must acquire. A share cannot have more bytes of the large lane than
// the lane has. So for the large lane, fit returns at most the bytes that the share does not have yet. Otherwise the
// share would wait forever for its own bytes.
func (s *Share) fit(bytes int64) int64 {
	if bytes <= 0 || s.budget.lane(bytes) == &s.budget.small {
		return bytes
	}
	return min(bytes, s.budget.large.size-s.large)
}

// TryAdd is Add without waiting. It reports whether the bytes were acquired.
func (s *Share) TryAdd(bytes int64) bool {
	if s.budget == nil {
		return true
	}
	if bytes = s.fit(bytes); !s.budget.TryAcquire(bytes) {
		return false
	}
	s.note(bytes)
	return true
}

func (s *Share) note(bytes int64) {
	if s.budget == nil || bytes <= 0 {
		return
	}
	if l := s.budget.lane(bytes); l == &s.budget.small {
		s.small += bytes
	} else {
		s.large += min(bytes, l.size)
	}
}

// Held reports whether the share has any bytes.
func (s *Share) Held() bool { return s.small > 0 || s.large > 0 }

// Release returns all bytes of the share to the budget. It may be called twice.
func (s *Share) Release() {
	if s.budget == nil {
		return
	}
	if s.small > 0 {
		if !s.worked.IsZero() {
			s.budget.small.observe(s.worked)
		}
		s.budget.small.release(s.small)
	}
	if s.large > 0 {
		s.budget.large.release(s.large)
	}
	s.small, s.large, s.worked = 0, 0, time.Time{}
}

// Work records that the body of the request has arrived and that the write begins. The duration of the write is the
// time from Work to Release. The budget uses this duration to adapt the limit of concurrent writes.
func (s *Share) Work() { s.worked = time.Now() }

// The limits of a slow transfer. A transfer can be slow only after it has run for SlowAfter. It is slow in two cases:
//
//   - It has moved no bytes for SlowAfter.
//   - On average, it has moved fewer than SlowRate bytes per second.
//
// While requests wait, the budget aborts the slowest of the slow transfers.
const (
	SlowAfter = 500 * time.Millisecond
	SlowRate  = 256 << 10
)

// Transfer tracks how fast a body is sent to or received from a client. A request keeps its memory until the transfer
// ends, so a slow client makes other requests wait. All methods of a nil *Transfer do nothing. Moved and Cut are safe
// for concurrent use.
type Transfer struct {
	lane    *lane
	started time.Time
	moved   atomic.Int64
	last    atomic.Int64 // time of the last call of Moved, in nanoseconds after started
	wasCut  atomic.Bool
	cut     func()
}

// Transfer registers the transfer of a body from or to a client. The caller must call End when the transfer has ended.
// While other requests wait for memory, the budget may call the function cut to abort the transfer, possibly several
// times. cut must not block and must not call methods of the transfer. If the share has no bytes, the result is nil.
func (s *Share) Transfer(cut func()) *Transfer {
	if !s.Held() {
		return nil
	}
	l := &s.budget.small
	if s.large > 0 {
		l = &s.budget.large
	}
	t := &Transfer{lane: l, started: time.Now(), cut: cut}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.transfers[t] = struct{}{}
	return t
}

// Moved records that n more bytes were sent or received.
func (t *Transfer) Moved(n int) {
	if t != nil {
		t.moved.Add(int64(n))
		t.last.Store(int64(time.Since(t.started)))
	}
}

// End removes the transfer. Its cut function is not called after End has returned.
func (t *Transfer) End() {
	if t == nil {
		return
	}
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	delete(t.lane.transfers, t)
}

// Cut reports whether the budget has aborted the transfer, because it was too slow while other requests waited.
func (t *Transfer) Cut() bool { return t != nil && t.wasCut.Load() }

// rate returns the speed of the transfer in bytes per second, and whether it is slow enough to be aborted. If no bytes
// have moved for SlowAfter, the rate is negative: minus the seconds since the last bytes. The transfer that has
// stalled longest thus has the lowest rate. A transfer younger than SlowAfter is never slow, because its first bytes
// only fill buffers.
func (t *Transfer) rate(now time.Time) (rate float64, slow bool) {
	took := now.Sub(t.started)
	if took <= SlowAfter {
		return 0, false
	}
	if idle := took - time.Duration(t.last.Load()); idle > SlowAfter {
		return -idle.Seconds(), true
	}
	rate = float64(t.moved.Load()) / took.Seconds()
	return rate, rate < SlowRate
}

// cutWhileWaiting aborts the slowest transfer at intervals of SlowAfter while a request waits for memory. The caller
// must call stop when the request no longer waits.
func (l *lane) cutWhileWaiting() (stop func()) {
	var again *time.Timer
	l.mu.Lock()
	defer l.mu.Unlock()
	again = time.AfterFunc(SlowAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if again != nil {
			l.cutSlowestLocked(time.Now())
			again.Reset(SlowAfter)
		}
	})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		again.Stop()
		again = nil
	}
}

// cutSlowestLocked aborts the slowest of the slow transfers. It also calls the function cut again for transfers that
// were aborted earlier and have not ended yet. The caller holds l.mu, so no transfer can end in the meantime.
func (l *lane) cutSlowestLocked(now time.Time) {
	var slowest *Transfer
	var least float64
	for t := range l.transfers {
		if t.wasCut.Load() {
			t.cut() // again, because the request may have set a new deadline at the same moment
			continue
		}
		if rate, slow := t.rate(now); slow && (slowest == nil || rate < least) {
			slowest, least = t, rate
		}
	}
	if slowest == nil {
		return
	}
	slowest.wasCut.Store(true)
	slowest.cut()
	l.cuts.Inc()
}
