// Package bindingstest is the conformance suite for bindings. Every implementation of the interfaces in
// component/bindings must pass it. The package owns the tests, and a Sink that records the events that it receives.
// Only tests import the package, and its goroutines end with the test.
package bindingstest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// limit bounds every wait of a suite.
const limit = testutil.Patience

// Output is what the suite needs to test an output binding.
type Output struct {
	// Open opens the binding against a system that answers.
	Open func(t *testing.T) bindings.Binding
	// Request is a request that succeeds.
	Request bindings.Request
	// Hang opens the binding against a system that accepts requests and never answers. arrived has a value when the
	// system has received a request. nil = the tests with such a system are skipped.
	Hang func(t *testing.T) (b bindings.Binding, arrived <-chan struct{})
}

// RunOutput tests an output binding.
func RunOutput(t *testing.T, o Output) {
	t.Run("a request that is right succeeds, again and at once from many callers", func(t *testing.T) {
		b := o.Open(t)
		closing(t, b)
		if !slices.Contains(b.Output.Operations(), o.Request.Operation) {
			t.Errorf("the operation %s is not listed in %v", o.Request.Operation, b.Output.Operations())
		}
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				if _, err := b.Output.Invoke(t.Context(), o.Request); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
	})
	t.Run("an operation that is not known is refused and the known ones are named", func(t *testing.T) {
		b := o.Open(t)
		closing(t, b)
		r := o.Request
		r.Operation = "no-such-operation"
		_, err := b.Output.Invoke(t.Context(), r)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), o.Request.Operation) {
			t.Errorf("error %v", err)
		}
	})
	if o.Hang != nil {
		t.Run("a call ends with its context, and the system may have executed it", func(t *testing.T) {
			b, arrived := o.Hang(t)
			closing(t, b)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			go func() {
				select {
				case <-arrived:
					cancel()
				case <-ctx.Done():
				}
			}()
			if _, err := b.Output.Invoke(ctx, o.Request); !fault.Is(err, fault.Indeterminate) {
				t.Errorf("error %v, want one that says that the outcome is unknown", err)
			}
		})
	}
	closes(t, o.Open)
}

// Input is what the suite needs to test an input binding.
type Input struct {
	// Open opens the binding and returns send, which makes the external system send one event. handled is true if
	// the external system received the acknowledgement that the event was handled.
	Open func(t *testing.T) (b bindings.Binding, send func(t *testing.T) (handled bool))
	// Redelivers is whether the system learns that an event was handled.
	Redelivers bool
}

// RunInput tests an input binding.
func RunInput(t *testing.T, in Input) {
	t.Run("events arrive", func(t *testing.T) {
		b, send := in.Open(t)
		closing(t, b)
		sink := NewSink()
		start(t, b, sink)
		if !send(t) && in.Redelivers {
			t.Error("the system got a failure for a handled event")
		}
		sink.Wait(t, 1)
	})
	if in.Redelivers {
		t.Run("the system learns that an event was not handled, and that the next was", func(t *testing.T) {
			b, send := in.Open(t)
			closing(t, b)
			sink := NewSink()
			start(t, b, sink)
			sink.Fail(fault.New(fault.Unavailable, "test", "the application failed"))
			if send(t) {
				t.Error("the system got a success for a failed event")
			}
			sink.Fail(nil)
			if !send(t) {
				t.Error("the system got a failure for a handled event")
			}
		})
	}
	t.Run("a second start is refused", func(t *testing.T) {
		b, _ := in.Open(t)
		closing(t, b)
		start(t, b, NewSink())
		if err := b.Input.Start(t.Context(), NewSink()); err == nil {
			t.Error("it was started twice")
		}
	})
	t.Run("it can be closed without having been started", func(t *testing.T) {
		b, _ := in.Open(t)
		closeWell(t, b)
	})
	t.Run("nothing arrives after it was closed", func(t *testing.T) {
		b, _ := in.Open(t)
		sink := NewSink()
		start(t, b, sink)
		closeWell(t, b)
		before := len(sink.Events())
		closeWell(t, b)
		if after := len(sink.Events()); after != before {
			t.Errorf("%d events arrived after the close", after-before)
		}
	})
}

func start(t *testing.T, b bindings.Binding, sink bindings.Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := b.Input.Start(ctx, sink); err != nil {
		t.Fatal(err)
	}
}

func closes(t *testing.T, open func(t *testing.T) bindings.Binding) {
	t.Run("it can be closed twice", func(t *testing.T) {
		b := open(t)
		closeWell(t, b)
		closeWell(t, b)
	})
}

func closing(t *testing.T, b bindings.Binding) {
	t.Helper()
	t.Cleanup(func() { closeWell(t, b) })
}

func closeWell(t *testing.T, b bindings.Binding) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// Sink records its events. It is safe for concurrent use.
type Sink struct {
	mu      sync.Mutex
	events  []bindings.Event
	failure error
	paused  bool
	changed chan struct{}
}

// NewSink returns a sink that is ready and handles everything.
func NewSink() *Sink { return &Sink{changed: make(chan struct{})} }

// Fail makes deliveries fail with err, or succeed if err is nil.
func (s *Sink) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// Pause makes the sink not ready if paused is true, and ready otherwise.
func (s *Sink) Pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
}

// Ready reports whether the sink is not paused.
func (s *Sink) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.paused
}

// Deliver records the event, unless Fail has set an error.
func (s *Sink) Deliver(_ context.Context, e bindings.Event) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return nil, s.failure
	}
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
	return nil, nil
}

// Events returns the events delivered so far.
func (s *Sink) Events() []bindings.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Wait waits until the sink has received at least n events, and returns all events so far. It fails the test if the
// events do not arrive in time.
func (s *Sink) Wait(t *testing.T, n int) []bindings.Event {
	t.Helper()
	late := time.After(limit)
	for {
		s.mu.Lock()
		events, changed := slices.Clone(s.events), s.changed
		s.mu.Unlock()
		if len(events) >= n {
			return events
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d of %d events arrived", len(events), n)
		}
	}
}
