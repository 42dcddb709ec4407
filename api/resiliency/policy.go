// Package resiliency implements the policies of Resiliency resources: timeouts, retries and circuit breakers.
//
// It owns the state of the circuit breakers. The callers decide which failures are retried. The package has no
// goroutines except timers.
package resiliency

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// Policies has the resiliency policies for calls: one for each application that has its own, and one for all others. It
// is safe for concurrent use.
type Policies struct {
	targets atomic.Pointer[map[discovery.App]*Policy]
	plain   atomic.Pointer[Policy]
}

// NewPolicies returns Policies in which all applications have the default policy. This policy retries calls that did
// not reach the application, for about two seconds. It has no timeout and no circuit breaker.
func NewPolicies() *Policies {
	p := &Policies{}
	p.plain.Store(&Policy{})
	p.targets.Store(&map[discovery.App]*Policy{})
	return p
}

// Set replaces all policies. targets has the policies of single applications, and others is the policy for all other
// applications. The caller must not change the arguments afterwards.
func (p *Policies) Set(targets map[discovery.App]*Policy, others *Policy) {
	p.plain.Store(others)
	p.targets.Store(&targets)
}

// For returns the policy of a target.
func (p *Policies) For(target discovery.App) *Policy {
	if own := (*p.targets.Load())[target]; own != nil {
		return own
	}
	return p.plain.Load()
}

// Policy has the settings of a Resiliency document for calls to one application.
type Policy struct {
	Timeout time.Duration // of each attempt, until the headers of its answer; 0 = none
	Retry   *Retry        // nil = retry only calls that did not reach the application
	Breaker *Breakers     // nil = none

	Documents Documents
}

// Documents has the names of the Resiliency resources that define the parts of a policy. An empty name means that no
// resource defines that part.
type Documents struct{ Timeout, Retry, Breaker string }

// The kinds of policies, as metrics name them.
const (
	KindTimeout = "timeout"
	KindRetry   = "retry"
	KindBreaker = "circuitbreaker"
)

// Retry configures which failed calls are retried, and when.
type Retry struct {
	Pause       time.Duration // before each retry, or before the first one if Exponential
	MaxPause    time.Duration // of a growing pause
	Exponential bool          // the pause doubles, with jitter
	Max         int           // retries; negative = no limit
	Statuses    StatusSet     // HTTP statuses of failures, 400 and above; empty = all
	Codes       StatusSet     // gRPC codes of failures; empty = all
}

// StatusSet is a set of statuses. Each element is a range that includes both ends.
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

// Explicit reports whether the policy configures retries.
func (p *Policy) Explicit() bool { return p.Retry != nil }

// RetryStatus reports whether the policy retries a call because of the status of its answer. The status is the gRPC
// code in the headers if there is one other than OK, and otherwise the HTTP status.
func (p *Policy) RetryStatus(r *http.Response) bool {
	if p.Retry == nil || r == nil {
		return false
	}
	if code, failed := grpcCode(r); failed {
		return len(p.Retry.Codes) == 0 || p.Retry.Codes.Has(code)
	}
	return r.StatusCode >= 400 && (len(p.Retry.Statuses) == 0 || p.Retry.Statuses.Has(r.StatusCode))
}

// grpcCode returns the gRPC status code in the headers of an answer. failed is true if there is a code other than OK.
// The headers contain a code only if the answer has no messages. In other answers the code is in the trailers, which
// grpcCode does not read.
func grpcCode(r *http.Response) (code int, failed bool) {
	text := r.Header.Get("Grpc-Status")
	if text == "" {
		return 0, false
	}
	code, err := strconv.Atoi(text)
	return code, err == nil && code != 0
}

// Pauses returns the pauses before the retries of one call.
type Pauses struct {
	left  int // negative = no limit
	steps backoff.BackOff
}

// Pauses returns the pauses of a new call.
func (p *Policy) Pauses() *Pauses {
	r := p.Retry
	if r == nil {
		r = &Retry{Pause: plainPause, MaxPause: plainMaxPause, Exponential: true, Max: plainRetries}
	}
	if !r.Exponential {
		return &Pauses{left: r.Max, steps: backoff.NewConstantBackOff(r.Pause)}
	}
	return &Pauses{left: r.Max, steps: &backoff.ExponentialBackOff{InitialInterval: r.Pause, MaxInterval: r.MaxPause,
		Multiplier: 2, RandomizationFactor: 0.3}}
}

// Next returns the next pause. It returns false if no retry is left.
func (p *Pauses) Next() (time.Duration, bool) {
	if p.left == 0 {
		return 0, false
	}
	p.left--
	return p.steps.NextBackOff(), true
}

// AttemptTimer is the running timeout of one attempt; nil means no timeout.
type AttemptTimer struct {
	after  time.Duration
	timer  *time.Timer
	passed atomic.Bool
}

// Deadline starts the timeout of an attempt. It returns a context that is canceled when the timeout expires. Without
// a timeout in the policy, it returns ctx and nil.
func (p *Policy) Deadline(ctx context.Context) (context.Context, *AttemptTimer) {
	if p.Timeout <= 0 {
		return ctx, nil
	}
	l := &AttemptTimer{after: p.Timeout}
	ctx, cancel := context.WithCancel(ctx)
	l.timer = time.AfterFunc(p.Timeout, func() {
		l.passed.Store(true)
		cancel()
	})
	return ctx, l
}

// Answered stops the timeout. The caller calls it when the headers of the answer have arrived, because the timeout does
// not apply to the body.
func (l *AttemptTimer) Answered() {
	if l != nil {
		l.timer.Stop()
	}
}

// Passed reports whether the timeout has expired.
func (l *AttemptTimer) Passed() bool { return l != nil && l.passed.Load() }

// Explain stops the timeout and returns the error to report for a failed attempt. If the timeout has not expired, or if
// the code of err is fault.Unavailable, the result is err. Otherwise, the result says that the timeout has expired, and
// has the code of err.
func (l *AttemptTimer) Explain(err error) error {
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
	return &fault.Error{Code: code, Op: "api.Invoke",
		Msg: fmt.Sprintf("no answer came within %s, the time-out of the resiliency policy "+
			"(context deadline exceeded)", l.after)}
}

// Budget limits the retries of a service. It holds at most 500 retries, and is full at first. Each retry takes one, and
// every five calls add one. Without this limit, retries would multiply the load of an overloaded application.
type Budget struct{ tenths atomic.Int64 }

const (
	budgetMax   = 5000 // maximum budget, in tenths of a retry
	budgetEarns = 2    // budget that each call adds, in tenths of a retry
)

// NewBudget returns a full budget.
func NewBudget() *Budget {
	b := &Budget{}
	b.tenths.Store(budgetMax)
	return b
}

// Earn adds a fifth of a retry to the budget, up to the maximum. It is called once for each call of the service.
func (b *Budget) Earn() {
	if b.tenths.Load() < budgetMax {
		b.tenths.Add(budgetEarns)
	}
}

// Spend takes one retry from the budget. It returns false if the budget is too small.
func (b *Budget) Spend() bool {
	if b.tenths.Add(-10) >= 0 {
		return true
	}
	b.tenths.Add(10)
	return false
}
