// Package lifecycle closes the parts of a program in the reverse order of their start. It also tracks the calls that a
// part must wait for when it closes.
//
// It owns the order, the time limit of each closer, and the joined error. Close runs each closer in its own goroutine
// and waits for it. If a closer exceeds its time limit, Close no longer waits for this closer, and returns an error
// that names its part of the program.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// reserve is the time that Close keeps back for each closer that has not run yet. Otherwise a slow closer could use up
// the time of later closers, which may write to disk. In total, Close keeps back at most 1/reserved of the time until
// the deadline.
const (
	reserve  = 250 * time.Millisecond
	reserved = 8
)

// Closer stops one part of a program and releases its resources. It must return soon after ctx has ended, even if it
// is not finished. It should then release what it can, and return an error that describes what is not finished.
type Closer func(ctx context.Context) error

// Stack has the closers of the parts of a program, in the order in which the parts were started. The zero value is
// ready to use. All methods are safe for concurrent use.
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

// Push adds the closer of a part that has just started. If Close has already begun, it calls the closer at once and
// returns its error.
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

// Close calls every closer, the last one pushed first, and joins their errors. Each error names its part. If ctx has a
// deadline, Close keeps back some of the time for the closers that have not run yet. If a closer exceeds its time,
// Close adds the error fault.Timeout and continues with the next closer. Close is idempotent: a later call waits for
// the first one and returns the same error.
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

// before returns a copy of ctx with an earlier deadline: d before the deadline of ctx. If ctx has no deadline, the copy
// has none either.
func before(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// run calls one closer with the context soft, and returns its error. If the closer has not returned when the context
// hard ends, run returns fault.Timeout and leaves the closer running.
func run(soft, hard context.Context, it item) error {
	result := make(chan error, 1)
	go func() { result <- it.close(soft) }()
	select {
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	case <-hard.Done():
	}
	select { // the closer may have finished at the last moment
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	default:
		return fault.New(fault.Timeout, "lifecycle.Close", it.name+" did not close in time and was left behind")
	}
}
