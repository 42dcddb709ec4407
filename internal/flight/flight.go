// Package flight shares the result of a slow fetch among all requests that wait for it. Examples are fetches of
// signing keys and access tokens.
//
// It owns the rule that one fetch of a value runs at a time, and the record of failed fetches. It caches no values.
// It has one goroutine for each running fetch. Close ends these goroutines.
package flight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// maxFailures is the maximum number of keys for which a Group remembers a failed fetch.
const maxFailures = 64

// ErrClosed is the error of Do after Close.
var ErrClosed = errors.New("flight: closed")

// Group fetches values. For each key, one fetch runs at a time, and all callers share its result. A caller stops
// waiting when its own context ends. A failed fetch is remembered for a while. During that time, Do fails without a
// fetch. A Group is safe for concurrent use.
type Group[T any] struct {
	timeout time.Duration
	rest    time.Duration
	life    context.Context
	end     context.CancelFunc
	flights singleflight.Group
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	closed   bool
	failures map[string]failure
}

// failure is the error of a fetch.
type failure struct {
	err error
	at  time.Time
}

// New returns a Group. timeout limits the time of each fetch. After a failed fetch, Do starts no fetch for the same key
// until rest has passed.
func New[T any](timeout, rest time.Duration) *Group[T] {
	g := &Group[T]{timeout: timeout, rest: rest, failures: map[string]failure{}}
	g.life, g.end = context.WithCancel(context.Background())
	return g
}

// Do returns the result of fetch. If a fetch for key is already running, Do waits for its result instead. If the last
// fetch for key failed a short time ago, Do returns the error of that fetch. After Close, Do returns ErrClosed.
//
// If ctx ends first, Do returns context.Cause(ctx), and the fetch continues for the other callers. The fetch has its
// own context, which ends after the timeout of the Group or at Close.
func (g *Group[T]) Do(ctx context.Context, key string, fetch func(context.Context) (T, error)) (T, error) {
	var none T
	if err := g.refusal(key); err != nil {
		return none, err
	}
	results := g.flights.DoChan(key, func() (any, error) { return g.run(key, fetch) })
	select {
	case r := <-results:
		value, _ := r.Val.(T)
		return value, r.Err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// run calls fetch and remembers its failure.
func (g *Group[T]) run(key string, fetch func(context.Context) (T, error)) (T, error) {
	var none T
	g.mu.Lock()
	err := g.refusalLocked(key) // another fetch may have ended since the caller looked
	if err == nil {
		g.running.Add(1)
	}
	g.mu.Unlock()
	if err != nil {
		return none, err
	}
	defer g.running.Done()
	ctx, cancel := context.WithTimeout(g.life, g.timeout)
	defer cancel()
	value, err := attempt(ctx, fetch)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.failures, key)
	if err != nil {
		if len(g.failures) >= maxFailures {
			clear(g.failures)
		}
		g.failures[key] = failure{err, time.Now()}
	}
	return value, err
}

// attempt calls fetch and converts a panic to an error. A client library may panic because of the answer of a server,
// and this must not end the process.
func attempt[T any](ctx context.Context, fetch func(context.Context) (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("flight: the fetch panicked: %v", p)
		}
	}()
	return fetch(ctx)
}

func (g *Group[T]) refusal(key string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refusalLocked(key)
}

// refusalLocked returns why no fetch may start. The caller holds g.mu.
func (g *Group[T]) refusalLocked(key string) error {
	if g.closed {
		return ErrClosed
	}
	if f, ok := g.failures[key]; ok && time.Since(f.at) < g.rest {
		return f.err
	}
	return nil
}

// Close ends the running fetches and waits for them. It may be called twice.
func (g *Group[T]) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.end()
	g.running.Wait()
}
