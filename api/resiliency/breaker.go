package resiliency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// Circuit identifies a circuit breaker of a policy.
type Circuit struct {
	Target  discovery.App
	Address string // scheme and host, if Target stands for all undeclared addresses; otherwise empty
	Method  string // path
}

// String returns the text that identifies a circuit in errors and in Breakers.
func (c Circuit) String() string { return cmp.Or(c.Address, c.Target.String()) + c.Method }

// Breakers is the set of circuit breakers of one policy. Each Circuit has a breaker of its own. Breakers is safe for
// concurrent use.
type Breakers struct {
	Settings BreakerSettings

	mu       sync.Mutex // guards circuits
	circuits map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]
}

// BreakerSettings configure when a breaker opens and closes.
type BreakerSettings struct {
	Name        string
	MaxRequests uint32                   // requests allowed while half open; 0 = 1
	Interval    time.Duration            // after which a closed breaker resets its counts; 0 = never
	Timeout     time.Duration            // after which an open breaker becomes half open; 0 = 60 s
	Trip        func(BreakerCounts) bool // nil = more than 5 failures in a row
	// OnChange is called when a breaker changes its state; nil = no call. to is the new state. method begins with the
	// address of the circuit, if the circuit has one.
	OnChange func(target discovery.App, method, to string)
}

// BreakerCounts are the counts that Trip decides on.
type BreakerCounts struct{ Requests, TotalFailures, ConsecutiveFailures uint32 }

// maxCircuits is the maximum number of circuit breakers in one Breakers. Without a limit, method paths that contain ids
// could create any number of them. When the limit is reached, all circuit breakers are removed, and new ones start
// closed.
const maxCircuits = 5000

// breaker returns the breaker of a circuit.
func (b *Breakers) breaker(of Circuit) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := of.String()
	c := b.circuits[key]
	if c == nil {
		if len(b.circuits) >= maxCircuits || b.circuits == nil {
			b.circuits = map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]{}
		}
		c = b.make(of)
		b.circuits[key] = c
	}
	return c
}

// State returns the state of the breaker of a circuit: closed, half-open or open.
func (b *Breakers) State(of Circuit) string { return b.breaker(of).State().String() }

// errNotCounted is the outcome of an attempt that is neither a success nor a failure of the target. Circuit breakers do
// not count such an attempt.
var errNotCounted = errors.New("the attempt says nothing about the target")

func (b *Breakers) make(of Circuit) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	s := b.Settings
	conf := gobreaker.Settings{Name: s.Name, MaxRequests: s.MaxRequests, Interval: s.Interval, Timeout: s.Timeout,
		IsExcluded: func(err error) bool { return err == errNotCounted }} //nolint:errorlint // Enter passes it
	if s.Trip != nil {
		conf.ReadyToTrip = func(c gobreaker.Counts) bool {
			return s.Trip(BreakerCounts{Requests: c.Requests - min(c.Requests, c.TotalExclusions),
				TotalFailures: c.TotalFailures, ConsecutiveFailures: c.ConsecutiveFailures})
		}
	}
	if s.OnChange != nil {
		conf.OnStateChange = func(_ string, from, to gobreaker.State) {
			s.OnChange(of.Target, of.Address+of.Method, to.String())
		}
	}
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](conf)
}

// Enter checks a circuit breaker before an attempt. It returns fault.Overloaded if the circuit is open. Otherwise, the
// caller must call end with the outcome of the attempt. ctx is the context of the whole call, not of the attempt.
//
// A failed attempt does not count if the caller caused the failure, if ctx was canceled, or if the deadline of ctx
// passed before the request was sent.
func (p *Policy) Enter(ctx context.Context, of Circuit) (end func(*http.Response, error), err error) {
	if p.Breaker == nil {
		return func(*http.Response, error) {}, nil
	}
	done, err := p.Breaker.breaker(of).Allow()
	if err != nil {
		return nil, &fault.Error{Code: fault.Overloaded, Op: "api.Invoke",
			Msg:  fmt.Sprintf("circuit breaker is open: %q of %s", p.Breaker.Settings.Name, of),
			Hint: "it closes when the application answers again"}
	}
	return func(r *http.Response, err error) {
		switch {
		case err != nil && (hasEnded(ctx, err) || isCallerFault(err)):
			err = errNotCounted
		case err == nil && r.StatusCode >= 500:
			err = errors.New(r.Status)
		}
		done(err)
	}, nil
}

// hasEnded reports whether an attempt failed with err because the call has ended, and not because of the target. That
// is the case if ctx was canceled, or if its deadline passed before the request was sent.
func hasEnded(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (!errors.Is(ctx.Err(), context.DeadlineExceeded) || !fault.Is(err, fault.Indeterminate))
}

// isCallerFault reports whether the request itself caused the failure of a call, so that other requests may still
// succeed.
func isCallerFault(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Denied, fault.TooLarge, fault.Invalid:
		return true
	}
	return false
}
