package api

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/quorate/quorate/internal/fault"
)

// Policies say how calls of each application are retried, limited in time and broken off.
// Safe for concurrent use.
type Policies struct {
	targets atomic.Pointer[map[App]*Policy]
	plain   atomic.Pointer[Policy]
}

// NewPolicies returns policies without targets: only what surely never reached an
// application is tried again, for about two seconds.
func NewPolicies() *Policies {
	p := &Policies{}
	p.plain.Store(&Policy{})
	p.targets.Store(&map[App]*Policy{})
	return p
}

// Set gives applications policies of their own, and all others one together. Neither is
// changed any more.
func (p *Policies) Set(targets map[App]*Policy, others *Policy) {
	p.plain.Store(others)
	p.targets.Store(&targets)
}

// For returns the policy of a target.
func (p *Policies) For(target App) *Policy {
	if own := (*p.targets.Load())[target]; own != nil {
		return own
	}
	return p.plain.Load()
}

// Policy is what a Resiliency document says about calls to one application.
type Policy struct {
	Timeout time.Duration // of each attempt, until the headers of its answer; 0 = none
	Retry   *Retry        // nil = only what surely never reached the application
	Breaker *Breakers     // nil = none
}

// Retry says what is tried again, and when.
type Retry struct {
	Pause       time.Duration // before each, or before the first
	MaxPause    time.Duration // of a growing pause
	Exponential bool          // it doubles, with chance in it
	Max         int           // retries; negative = no limit
	Statuses    StatusSet     // of answers; empty = all but 2xx and 3xx
}

// StatusSet are ranges of statuses, both ends included.
type StatusSet [][2]int

// Has reports whether a status is in the set.
func (s StatusSet) Has(status int) bool {
	for _, r := range s {
		if status >= r[0] && status <= r[1] {
			return true
		}
	}
	return false
}

// The retries of a target without a policy.
const (
	plainRetries  = 6
	plainPause    = 25 * time.Millisecond
	plainMaxPause = time.Second
)

// explicit reports whether somebody asked for retries in so many words.
func (p *Policy) explicit() bool { return p.Retry != nil }

// retryStatus reports whether an answer is to be tried again for its status.
func (p *Policy) retryStatus(r *http.Response) bool {
	if p.Retry == nil || r == nil {
		return false
	}
	if len(p.Retry.Statuses) > 0 {
		return p.Retry.Statuses.Has(r.StatusCode)
	}
	return r.StatusCode >= 400
}

// pauses gives the pauses before the retries of one call.
type pauses struct {
	left  int // negative = no limit
	steps backoff.BackOff
}

func (p *Policy) pauses() *pauses {
	r := p.Retry
	if r == nil {
		r = &Retry{Pause: plainPause, MaxPause: plainMaxPause, Exponential: true, Max: plainRetries}
	}
	if !r.Exponential {
		return &pauses{left: r.Max, steps: backoff.NewConstantBackOff(r.Pause)}
	}
	return &pauses{left: r.Max, steps: &backoff.ExponentialBackOff{InitialInterval: r.Pause, MaxInterval: r.MaxPause, Multiplier: 2, RandomizationFactor: 0.3}}
}

func (p *pauses) next() (time.Duration, bool) {
	if p.left == 0 {
		return 0, false
	}
	p.left--
	return p.steps.NextBackOff(), true
}

// limit is the time-out of one attempt.
type limit struct {
	after  time.Duration
	timer  *time.Timer
	passed atomic.Bool
}

func (p *Policy) deadline(ctx context.Context) (context.Context, *limit) {
	if p.Timeout <= 0 {
		return ctx, nil
	}
	l := &limit{after: p.Timeout}
	ctx, cancel := context.WithCancel(ctx)
	l.timer = time.AfterFunc(p.Timeout, func() {
		l.passed.Store(true)
		cancel()
	})
	return ctx, l
}

// answered ends the time-out: a stream may last.
func (l *limit) answered() {
	if l != nil {
		l.timer.Stop()
	}
}

// explain names the time-out where it was the reason.
func (l *limit) explain(err error) error {
	if l == nil {
		return err
	}
	l.timer.Stop()
	if !l.passed.Load() {
		return err
	}
	code := fault.CodeOf(err)
	if code == fault.Unavailable {
		return err
	}
	return &fault.Error{Code: code, Op: "api.Invoke", Msg: fmt.Sprintf("no answer came within %s, the time-out of the resiliency policy (context deadline exceeded)", l.after)}
}

// budget bounds the retries of a service to a part of its calls, so that an application
// in trouble does not get many times the calls it could not take.
type budget struct{ tenths atomic.Int64 }

const (
	budgetMax   = 5000 // tenths of a retry: the most that can be saved up
	budgetEarns = 2    // tenths of a retry for each call
)

func newBudget() *budget {
	b := &budget{}
	b.tenths.Store(budgetMax)
	return b
}

// earn counts a call.
func (b *budget) earn() {
	if b.tenths.Load() < budgetMax {
		b.tenths.Add(budgetEarns)
	}
}

// spend takes one retry, if there is one.
func (b *budget) spend() bool {
	if b.tenths.Add(-10) >= 0 {
		return true
	}
	b.tenths.Add(10)
	return false
}
