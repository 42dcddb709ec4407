// Package lifecycle closes the parts of a program in the reverse order of their start. It also tracks the calls that a
// part must wait for when it closes.
//
// Close runs each closer in its own goroutine and waits for it. If a closer exceeds its time limit, Close stops
// waiting, and its error names the part of the program.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// reserve is the time that Close reserves for each later closer, so that a slow closer cannot use up all the time.
// Later closers may still have to write to disk. In total, Close reserves at most 1/reserved of the time until the
// deadline.
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

// Push adds the closer of a part that has just started. If Close has already begun, Push runs the closer at once and
// returns the closer's error.
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

// Close calls the closers in the reverse order of Push, and joins their errors. Each error names its part. If ctx has a
// deadline, each closer has a time limit that leaves time for the next ones. If a closer exceeds its limit, Close adds
// the error fault.Timeout and continues with the next closer.
//
// A later call of Close waits for the first one and returns the same error.
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

// shareOf returns the time that Close reserves for each of n closers. If ctx has no deadline, the result is 0.
func shareOf(ctx context.Context, n int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || n == 0 {
		return 0
	}
	return max(0, min(reserve, time.Until(deadline)/time.Duration(reserved*n)))
}

// before returns a copy of ctx whose deadline is earlier by d. If ctx has no deadline, the copy has none either.
func before(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// run calls a closer with soft as its context, and returns its error. If hard ends before the closer has returned, run
// returns fault.Timeout and leaves the closer running.
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
