// Package lifecycle closes the parts of a program in the reverse order of their start.
//
// It owns the order, the time limit of each closer, and the joined error. It treats all parts alike. Close runs each
// closer in its own goroutine and waits for it. If a closer exceeds its time limit, Close does not wait for it any
// longer, and returns an error that names it.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// reserve is the most time that Close keeps back for each closer that has not run yet. Otherwise a slow closer could
// use up the time of closers that write to disk. For all closers together, Close keeps back at most 1/reserved of its
// time. The rest is for requests that are still running.
const (
	reserve  = 250 * time.Millisecond
	reserved = 8
)

// Closer stops one part and releases its resources. When its time is over, ctx ends. It should then stop waiting,
// release what it can, and return an error that describes what was not finished.
type Closer func(ctx context.Context) error

// Stack collects the closers of the parts of a program, in the order in which the parts were started. The zero
// value is ready to use. All methods are safe for concurrent use.
type Stack struct {
	mu     sync.Mutex
	items  []item
	closed bool
	done   chan struct{}
	err    error
}

type item struct {
	name  string
	close Closer
}

// Push adds the closer of a part that has just started. If Close has already begun, Push calls the closer at once
// and returns its error.
func (s *Stack) Push(name string, c Closer) error {
	if s.push(item{name: name, close: c}) {
		return nil
	}
	return run(context.Background(), context.Background(), item{name: name, close: c})
}

func (s *Stack) push(it item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.items = append(s.items, it)
	return true
}

// Close calls every closer, beginning with the last one pushed, and joins their errors. Each error names its part. If
// ctx has a deadline, Close keeps back some time for the closers that have not run yet. If a closer takes longer than
// its time, Close adds fault.Timeout for it and continues with the next closer.
//
// Close is idempotent: later calls wait for the first and return the same error.
func (s *Stack) Close(ctx context.Context) error {
	items, done, first := s.begin()
	if !first {
		<-done
		return s.err
	}
	defer close(done)
	s.err = closeAll(ctx, items)
	return s.err
}

func (s *Stack) begin() (items []item, done chan struct{}, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.done, false
	}
	s.closed, s.done = true, make(chan struct{})
	return s.items, s.done, true
}

func closeAll(ctx context.Context, items []item) error {
	share := shareOf(ctx, len(items))
	var errs []error
	for i := len(items) - 1; i >= 0; i-- {
		soft, cancelSoft := before(ctx, time.Duration(i)*share+share/2)
		hard, cancelHard := before(ctx, time.Duration(i)*share)
		if err := run(soft, hard, items[i]); err != nil {
			errs = append(errs, err)
		}
		cancelSoft()
		cancelHard()
	}
	return errors.Join(errs...)
}

// shareOf returns the time to keep for each of n closers.
func shareOf(ctx context.Context, n int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || n == 0 {
		return 0
	}
	return max(0, min(reserve, time.Until(deadline)/time.Duration(reserved*n)))
}

// before returns a context that ends at the duration d before the deadline of ctx. If ctx has no deadline, the returned
// context ends with ctx.
func before(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// run calls one closer and returns its error. The closer gets the context soft. When the context hard ends, run stops
// waiting for the closer and returns fault.Timeout.
func run(soft, hard context.Context, it item) error {
	result := make(chan error, 1)
	go func() { result <- it.close(soft) }()
	select {
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	case <-hard.Done():
	}
	select { // it may have finished at the last moment
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	default:
		return fault.New(fault.Timeout, "lifecycle.Close", it.name+" did not close in time and was left behind")
	}
}
