package resiliency

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// Breakers has the circuit breakers of one policy: one for each method of each target application. Breakers are safe
// for concurrent use.
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
	// OnChange is called on state changes; may be nil.
	OnChange func(target discovery.App, method, to string)
}

// BreakerCounts are the counts that Trip decides on.
type BreakerCounts struct{ Requests, TotalFailures, ConsecutiveFailures uint32 }

// maxCircuits is the maximum number of circuit breakers in one Breakers. A limit is needed, because method paths may
// contain ids. At the limit, all circuit breakers are dropped. New ones start closed.
const maxCircuits = 5000

// breaker returns the breaker of one method.
func (b *Breakers) breaker(target discovery.App, method string) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := target.String() + method
	c := b.circuits[key]
	if c == nil {
		if len(b.circuits) >= maxCircuits || b.circuits == nil {
			b.circuits = map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]{}
		}
		c = b.make(target, method)
		b.circuits[key] = c
	}
	return c
}

// State returns the state of the breaker of one method: closed, half-open or open.
func (b *Breakers) State(target discovery.App, method string) string {
	return b.breaker(target, method).State().String()
}

func (b *Breakers) make(target discovery.App, method string) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	s := b.Settings
	conf := gobreaker.Settings{Name: s.Name, MaxRequests: s.MaxRequests, Interval: s.Interval, Timeout: s.Timeout}
	if s.Trip != nil {
		conf.ReadyToTrip = func(c gobreaker.Counts) bool {
			return s.Trip(BreakerCounts{Requests: c.Requests, TotalFailures: c.TotalFailures,
				ConsecutiveFailures: c.ConsecutiveFailures})
		}
	}
	if s.OnChange != nil {
		conf.OnStateChange = func(_ string, from, to gobreaker.State) { s.OnChange(target, method, to.String()) }
	}
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](conf)
}

// Enter checks the circuit breaker of a method before an attempt. It returns fault.Overloaded if the circuit is open.
// Otherwise the caller must call end with the outcome of the attempt.
func (p *Policy) Enter(target discovery.App, method string) (end func(*http.Response, error), err error) {
	if p.Breaker == nil {
		return func(*http.Response, error) {}, nil
	}
	done, err := p.Breaker.breaker(target, method).Allow()
	if err != nil {
		return nil, &fault.Error{Code: fault.Overloaded, Op: "api.Invoke",
			Msg:  fmt.Sprintf("circuit breaker is open: %q of %s%s", p.Breaker.Settings.Name, target, method),
			Hint: "it closes when the application answers again"}
	}
	return func(r *http.Response, err error) {
		if err == nil && r.StatusCode >= 500 {
			err = errors.New(r.Status)
		}
		done(err)
	}, nil
}
