package api

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/quorate/quorate/internal/fault"
)

// Breakers are the circuit breakers of one policy, one for each instance of each target. Safe for
// concurrent use.
type Breakers struct {
	Settings BreakerSettings

	mu       sync.Mutex // guards circuits
	circuits map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]
}

// BreakerSettings say when a breaker opens and closes.
type BreakerSettings struct {
	Name        string
	MaxRequests uint32                                // let through while half open; 0 = 1
	Interval    time.Duration                         // after which a closed one forgets; 0 = never
	Timeout     time.Duration                         // after which an open one tries; 0 = 60 s
	Trip        func(BreakerCounts) bool              // nil = more than 5 failures in a row
	OnChange    func(target App, instance, to string) // told of changes; nil = nobody
}

// BreakerCounts are what a rule for opening can ask about.
type BreakerCounts struct{ Requests, TotalFailures, ConsecutiveFailures uint32 }

// maxCircuits bounds the instances remembered; boots come and go.
const maxCircuits = 256

// of returns the breaker of one instance.
func (b *Breakers) of(target App, instance string) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := target.String() + "/" + instance
	c := b.circuits[key]
	if c == nil {
		if len(b.circuits) >= maxCircuits || b.circuits == nil {
			b.circuits = map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]{}
		}
		c = b.make(target, instance)
		b.circuits[key] = c
	}
	return c
}

func (b *Breakers) make(target App, instance string) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	s := b.Settings
	conf := gobreaker.Settings{Name: s.Name, MaxRequests: s.MaxRequests, Interval: s.Interval, Timeout: s.Timeout}
	if s.Trip != nil {
		conf.ReadyToTrip = func(c gobreaker.Counts) bool {
			return s.Trip(BreakerCounts{Requests: c.Requests, TotalFailures: c.TotalFailures, ConsecutiveFailures: c.ConsecutiveFailures})
		}
	}
	if s.OnChange != nil {
		conf.OnStateChange = func(_ string, from, to gobreaker.State) { s.OnChange(target, instance, to.String()) }
	}
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](conf)
}

// enter asks the breaker of a place; end tells it what became of the attempt.
func (p *Policy) enter(target App, at *Place) (end func(*http.Response, error), err error) {
	if p.Breaker == nil {
		return func(*http.Response, error) {}, nil
	}
	done, err := p.Breaker.of(target, at.Node+"/"+at.Boot).Allow()
	if err != nil {
		return nil, &fault.Error{Code: fault.Overloaded, Op: "api.Invoke", Msg: fmt.Sprintf("the circuit breaker %q of %s on node %s is open", p.Breaker.Settings.Name, target, at.Node),
			Hint: "it closes when the application answers again"}
	}
	return func(r *http.Response, err error) {
		if err == nil && r.StatusCode >= 500 {
			err = errors.New(r.Status)
		}
		done(err)
	}, nil
}
