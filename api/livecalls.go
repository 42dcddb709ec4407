package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

const (
	// MaxLiveCalls is the maximum number of unread calls that a CallWatch keeps.
	MaxLiveCalls = 200
	// maxCallWatches is the maximum number of call watches of a node. Each watch delays every request a little and
	// needs memory, about 2 MiB for 64 watches.
	maxCallWatches = 64
)

// LiveCall describes an API request that has ended. It has no key, no value and no header except the trace id.
type LiveCall struct {
	At       time.Time // when the request ended
	Took     time.Duration
	App      string // application whose API was called
	Protocol string // HTTP or gRPC
	Route    string // verb and pattern of the endpoint, or full gRPC method
	Code     int    // HTTP status, 0 = aborted; or gRPC code
	Failed   bool
	Level    string // consistency level that the answer reports; empty = none
	Trace    string // trace id of the caller; empty = none
}

// CallFilter selects calls. Empty fields select all.
type CallFilter struct {
	App    string // the application whose API was called
	Route  string // text that the route contains, ignoring case
	Trace  string // the trace id
	Failed bool   // only failed calls
	Least  time.Duration
}

func (f *CallFilter) selects(c *LiveCall) bool {
	return (f.App == "" || f.App == c.App) && (f.Trace == "" || f.Trace == c.Trace) && (c.Failed || !f.Failed) &&
		c.Took >= f.Least && (f.Route == "" || strings.Contains(strings.ToLower(c.Route), strings.ToLower(f.Route)))
}

// CallWatch receives the calls that its filter selects. It keeps the last MaxLiveCalls calls until they are read, and
// counts those that it dropped. It is safe for concurrent use.
type CallWatch struct {
	filter CallFilter
	log    *CallLog

	mu    sync.Mutex
	calls []LiveCall // a ring once it is full
	begin int        // index of the oldest call in the ring
	lost  uint64     // calls that were dropped since the last Take
	ready chan<- struct{}
}

// Watch opens a watch for the calls that f selects, in all APIs that use c. Health probes are not included. It returns
// an error if too many watches are open.
//
// When there are calls to read, the watch sends an element to ready without blocking. The channel must have a buffer of
// one element. It may be nil if no goroutine waits for calls.
func (c *CallLog) Watch(f CallFilter, ready chan<- struct{}) (*CallWatch, error) {
	w := &CallWatch{filter: f, log: c, ready: ready}
	c.mu.Lock()
	defer c.mu.Unlock()
	after := *c.readers.Load()
	if len(after.watches) >= maxCallWatches {
		return nil, &fault.Error{Code: fault.Unavailable, Op: "api.Watch", Msg: "too many readers watch the calls of " +
			"this node", Hint: "close other pages and commands with live calls"}
	}
	after.watches = append(slices.Clip(after.watches), w)
	c.readers.Store(&after)
	return w, nil
}

// Close ends the watch.
func (w *CallWatch) Close() {
	c := w.log
	c.mu.Lock()
	defer c.mu.Unlock()
	after := *c.readers.Load()
	after.watches = slices.DeleteFunc(slices.Clone(after.watches), func(one *CallWatch) bool { return one == w })
	c.readers.Store(&after)
}

// Take returns the calls since the last Take, the oldest first. lost is the number of earlier calls that were dropped
// because they were not read in time.
func (w *CallWatch) Take() (calls []LiveCall, lost uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls, lost = append(slices.Clone(w.calls[w.begin:]), w.calls[:w.begin]...), w.lost
	w.calls, w.begin, w.lost = w.calls[:0], 0, 0
	return calls, lost
}

// Follow watches the calls that f selects, and passes them to the function take. When the watch is open, Follow first
// passes an empty list. It returns when ctx ends or take returns an error. lost has the same meaning as in
// CallWatch.Take.
func (c *CallLog) Follow(ctx context.Context, f CallFilter, take func(calls []LiveCall, lost uint64) error) error {
	ready := make(chan struct{}, 1)
	w, err := c.Watch(f, ready)
	if err != nil {
		return err
	}
	defer w.Close()
	for err = take(nil, 0); err == nil; {
		select {
		case <-ready:
			if calls, lost := w.Take(); len(calls) > 0 { // an earlier Take may have read them
				err = take(calls, lost)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// add keeps a call if the filter selects it.
func (w *CallWatch) add(call *LiveCall) {
	if !w.filter.selects(call) {
		return
	}
	w.mu.Lock()
	if len(w.calls) < MaxLiveCalls {
		w.calls = append(w.calls, *call)
	} else {
		w.calls[w.begin] = *call
		w.begin, w.lost = (w.begin+1)%MaxLiveCalls, w.lost+1
	}
	w.mu.Unlock()
	select {
	case w.ready <- struct{}{}:
	default: // an element is already in the channel, or nothing waits for calls
	}
}

// Watched reports whether a watch of calls is open.
func (c *CallLog) Watched() bool { return c != nil && len(c.readers.Load().watches) > 0 }

// show gives a call to all watches.
func show(watches []*CallWatch, protocol string, c *LoggedCall) {
	now := time.Now()
	one := &LiveCall{At: now, Took: now.Sub(c.Begun), App: c.App, Protocol: protocol,
		Route: strings.Clone(Shorten(c.Endpoint)), Code: c.Code, Failed: c.Code == 0 || c.Code >= 400,
		Level: levelName(c.Level), Trace: strings.Clone(TraceID(c.Parent))}
	if protocol == protocolGRPC {
		one.Failed = c.Code != 0
	}
	for _, w := range watches {
		w.add(one)
	}
}

// levelName returns text if it is the name of a known consistency level, and "" otherwise. Other text may come from an
// application, so it is not shown.
func levelName(text string) string {
	switch l := state.Level(text); l {
	case state.Linearizable, state.SessionLevel, state.Bounded, state.Stale:
		return string(l)
	}
	return ""
}
