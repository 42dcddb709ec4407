package due

import "time"

// What becomes of a tick.
const (
	outcomeDone     = "done"
	outcomeUnknown  = "unknown"
	outcomeFailed   = "failed"
	outcomeRetried  = "retried"
	outcomeCanceled = "canceled"
	outcomeExpired  = "expired"
)

const (
	maxError = 256 // bytes of an error that a state has
	// unreadablePause is the pause until the next tick if this server cannot read the schedule, for example because it
	// lacks the time zone.
	unreadablePause = time.Minute
)

// after returns the work after a tick with result r, or nil if it has ended. fired is the cluster time at which the
// tick was handed out, and now that of the result. Ticks that were due up to fired count as this one.
func (w *Work) after(r Result, failure error, fired, now uint64) (next *Work, outcome string) {
	n := *w
	switch r {
	case Cancel:
		return nil, outcomeCanceled
	case Failed:
		n.State.Error = errorText(failure)
		p := &w.Spec.Policy
		pause := p.Interval
		if !p.Forever && w.State.Attempt >= p.Retries {
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
		outcome = outcomeUnknown
	default:
		outcome, n.State.Error = outcomeDone, ""
	}
	if !n.Advance(fired) {
		return nil, outcome
	}
	return &n, outcome
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[:min(len(text), maxError)]
}

// Advance moves w to its next tick after fired, which is cluster time in Unix milliseconds. It returns false, and
// leaves w as it is, if there is none.
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
	if !ok || w.Spec.Until != 0 && at >= w.Spec.Until {
		return false
	}
	w.State.Ticks++
	w.State.Due, w.State.At, w.State.Attempt = at, at, 0
	return true
}
