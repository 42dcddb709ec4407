// Package lifecycle closes what was opened, in the opposite order.
//
// It owns the order, the time each closer may take, and the joining of errors. It must
// never know what it closes. Close runs each closer in a goroutine of its own and waits
// for it; only a closer that outlasts its time is left behind, and the error names it.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// reserve is the most time set aside for each closer that comes later, so that a slow
// one high in the stack cannot starve those that flush to disk below it.
const reserve = 250 * time.Millisecond

// Closer releases one thing. Its ctx ends when its time is up; it should then give up
// waiting, release what it can and say in its error what was cut short.
type Closer func(ctx context.Context) error

// Stack collects closers in the order things were started. The zero value is ready to
// use. All methods are safe for concurrent use.
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

// Push adds the closer of something that has just started. After Close has begun,
// nothing would ever call the closer, so Push calls it at once and returns its error.
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

// Close calls every closer, the last pushed first, and joins their errors; each error
// names what failed to close. A closer gets a ctx that ends before ctx does, early enough
// to leave some time to those after it; one that has not returned by then is left
// running, reported with code timeout, and the rest are closed all the same.
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

// shareOf is the time kept back for each closer still to come.
func shareOf(ctx context.Context, n int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || n == 0 {
		return 0
	}
	return max(0, min(reserve, time.Until(deadline)/time.Duration(2*n)))
}

// before returns a ctx that ends d before ctx's deadline; without a deadline, with ctx.
func before(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-d))
}

// run closes one thing: it is told to stop waiting when soft ends and left behind when hard does.
func run(soft, hard context.Context, it item) error {
	result := make(chan error, 1)
	go func() { result <- it.close(soft) }()
	select {
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	case <-hard.Done():
	}
	select { // it may have finished just as its time ran out
	case err := <-result:
		return fault.Wrap(err, "lifecycle.Close", "closing "+it.name)
	default:
		return fault.New(fault.Timeout, "lifecycle.Close", it.name+" did not close in time and was left behind")
	}
}
