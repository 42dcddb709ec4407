package due

import (
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// The outcomes of an attempt, for metrics and logs.
const (
	outcomeDone     = "done"
	outcomeUnknown  = "unknown"
	outcomeFailed   = "failed"
	outcomeRetried  = "retried"
	outcomeCanceled = "canceled"
	outcomeExpired  = "expired"
)

// unknownError is the State.Error of work whose target has answered the last tick with "not found".
const unknownError = "the application does not know it (404)"

const (
	maxError = 256 // maximum length in bytes of the error in a state
	// unreadablePause is the time until the next tick if this server cannot read the schedule of the work. For
	// example, it may not know the time zone.
	unreadablePause = time.Minute
)

// after applies the result r of an attempt to a copy of w. It returns the copy, and the label of the outcome for
// metrics and logs. The copy is nil if the work has ended. failure is the error of a failed attempt.
//
// fired is the cluster time at which the tick was handed out. Later ticks that were already due at that time are
// skipped. now is the cluster time of the result.
func (w *Work) after(r Result, failure error, fired, now uint64) (next *Work, outcome string) {
	n := *w
	switch r {
	case Cancel:
		return nil, outcomeCanceled
	case Failed:
		n.State.Error = errorText(failure)
		p := &w.Spec.Policy
		pause := p.Interval
		if w.final() {
			if n.Advance(fired) {
				return &n, outcomeFailed
			}
			if pause = p.Persist; pause == 0 {
				return nil, outcomeFailed
			}
		}
		n.State.Attempt++
		n.State.At = now + uint64(max(pause.Milliseconds(), 1)) //nolint:gosec // positive
		return &n, outcomeRetried
	case Unknown:
		outcome, n.State.Error = outcomeUnknown, unknownError
	default:
		outcome, n.State.Error = outcomeDone, ""
	}
	if !n.Advance(fired) {
		return nil, outcome
	}
	return &n, outcome
}

// final reports whether the next attempt is the last one that Policy.Retries allows.
func (w *Work) final() bool {
	return !w.Spec.Policy.Forever && w.State.Attempt >= w.Spec.Policy.Retries
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return fault.Shorten(err.Error(), maxError)
}

// ttlSlack is the time after the end of a ttl for which a tick that was due within the ttl may still be handed out.
// Without this time, a tick that is due exactly at the end of the ttl would always come too late.
const ttlSlack = time.Second

// expiry returns the cluster time from which w is no longer handed out, or 0 if w has no ttl. If the next attempt is
// due after the end of the ttl, the result is the end of the ttl. Otherwise the result is the end of the ttl plus
// ttlSlack plus 1 ms.
func (w *Work) expiry() uint64 {
	end := w.Spec.Until
	if end != 0 && w.State.At <= end {
		end += uint64(ttlSlack.Milliseconds()) + 1
	}
	return end
}

// expired reports whether the ttl of w is over at the cluster time now.
func (w *Work) expired(now uint64) bool {
	end := w.expiry()
	return end != 0 && now >= end
}

// Advance moves w to its next tick. It returns false if there is none. fired is the cluster time at which the current
// tick was handed out, in Unix milliseconds. Later ticks that were already due at that time are skipped. If this server
// cannot read the schedule, the next tick is due after unreadablePause.
func (w *Work) Advance(fired uint64) bool {
	if w.Spec.Repeats > 0 && w.State.Ticks+1 >= w.Spec.Repeats {
		return false
	}
	last := max(fired, w.State.Due)
	s, err := parse(w.Spec.Schedule)
	at, ok := s.next(w.State.Due, last)
	if err != nil {
		w.State.Error = errorText(err)
		at, ok = last+uint64(unreadablePause.Milliseconds()), true
	}
	if !ok || w.Spec.Until != 0 && at > w.Spec.Until {
		return false
	}
	w.State.Ticks++
	w.State.Due, w.State.At, w.State.Attempt = at, at, 0
	return true
}
