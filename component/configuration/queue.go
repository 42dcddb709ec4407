package configuration

import (
	"context"
	"strconv"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// MaxWaiting is the maximum number of keys whose changes wait in a Queue. It allows for the largest possible change of
// a full store, in which all MaxItems items are deleted and MaxItems new items are added.
const MaxWaiting = 2 * MaxItems

// Queue is a Subscription to which a store adds changes with Put. For each key, it keeps only the newest change that
// was not delivered yet. Use NewQueue to create a Queue.
//
// Put never waits for the reader. If the reader is too slow, the Queue drops all changes, and Next returns
// fault.Overloaded.
type Queue struct {
	wake chan struct{} // has a value if there may be something new
	end  func()

	present func() []string // returns the keys that exist; nil = not known

	overflow context.Context
	drop     context.CancelFunc // ends overflow

	mu    sync.Mutex
	order []string // keys that wait, the one that waits longest first
	items map[string]Item
	err   error
}

// NewQueue returns an empty queue. end is called once, by the first Close.
func NewQueue(end func()) *Queue {
	overflow, drop := context.WithCancel(context.Background())
	return &Queue{wake: make(chan struct{}, 1), end: sync.OnceFunc(end), items: map[string]Item{}, overflow: overflow,
		drop: drop}
}

// TellPresent sets the function that Present calls. It must be called before the subscription is used.
func (q *Queue) TellPresent(present func() []string) { q.present = present }

// Present implements Subscription.
func (q *Queue) Present() []string {
	if q.present == nil {
		return nil
	}
	return q.present()
}

// Put adds changes. An empty Queue accepts any number of them. If other changes are already waiting, and the total
// would exceed MaxWaiting keys, the Queue drops all changes, and the subscription fails.
func (q *Queue) Put(items ...Item) {
	q.mu.Lock()
	if q.err == nil {
		q.add(items)
	}
	q.mu.Unlock()
	q.notify()
}

func (q *Queue) add(items []Item) {
	waited := len(q.order) > 0
	for _, i := range items {
		if _, waits := q.items[i.Key]; !waits {
			q.order = append(q.order, i.Key)
		}
		q.items[i.Key] = i
	}
	if waited && len(q.order) > MaxWaiting {
		q.order, q.items = nil, nil
		q.drop()
		q.err = &fault.Error{Code: fault.Overloaded, Op: "configuration.Next",
			Msg:  "the subscriber reads too slowly: changes of more than " + strconv.Itoa(MaxWaiting) + " keys waited",
			Hint: "subscribe again with metadata initial=true"}
	}
}

// Overflow implements Subscription.
func (q *Queue) Overflow() context.Context { return q.overflow }

// Fail ends the subscription with err. Next first delivers the changes that wait.
func (q *Queue) Fail(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	q.notify()
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Next implements Subscription.
func (q *Queue) Next(ctx context.Context) ([]Item, error) {
	for {
		if items, err := q.take(); len(items) > 0 || err != nil {
			return items, err
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil, &fault.Error{Code: fault.Timeout, Op: "configuration.Next", Msg: "no item has changed",
				Err: ctx.Err()}
		}
	}
}

func (q *Queue) take() ([]Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return nil, q.err
	}
	out := make([]Item, len(q.order))
	for n, key := range q.order {
		out[n] = q.items[key]
	}
	q.order = nil
	clear(q.items)
	return out, nil
}

// Close implements Subscription.
func (q *Queue) Close() {
	q.Fail(&fault.Error{Code: fault.Unavailable, Op: "configuration.Next", Msg: "the subscription was closed"})
	q.end()
}
