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

// Add acquires more bytes for the share. It returns the errors of Budget.Acquire, and the share then keeps its previous
// bytes. If the share already has bytes, Add waits only as long as a small request would, because other requests may be
// waiting for the bytes of this share.
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

// AddUsed is Add for bytes that are already in use, such as those of an answer. The budget does not count the bytes of
// calls that wait. Therefore all waiting calls together are limited to maxUsed. A call that would exceed this limit
// returns fault.Overloaded at once, unless it is the only one.
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

// fit returns how many of the given bytes the share must acquire. In the large lane, the result is at most the size of
// the lane minus the bytes that the share has. With a larger result, the share would wait forever for its own bytes.
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

// The limits of a slow transfer. A transfer that has run for longer than SlowAfter is slow in two cases:
//
//   - It has moved no bytes for SlowAfter.
//   - On average, it has moved fewer than SlowRate bytes per second.
//
// While requests wait, the budget aborts the slowest of these transfers.
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
// If the share has no bytes, the result is nil.
//
// While other requests wait for memory, the budget may abort a slow transfer. To do so, it calls the function cut,
// possibly several times. cut must not block and must not call methods of the transfer.
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
// have moved for SlowAfter, the speed is negative: minus the seconds since the last bytes. A transfer younger than
// SlowAfter is never slow.
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

// cutWhileWaiting aborts the slowest of the slow transfers, once per SlowAfter, until stop is called. The caller must
// call stop when its request no longer waits.
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
