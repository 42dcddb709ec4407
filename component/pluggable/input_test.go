package pluggable_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// slowSink holds every event until it is released, and answers with its data.
type slowSink struct {
	release chan struct{}

	mu     sync.Mutex
	held   []string
	paused bool
}

func newSlowSink() *slowSink { return &slowSink{release: make(chan struct{})} }

func (s *slowSink) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.paused
}

func (s *slowSink) pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
}

func (s *slowSink) Deliver(ctx context.Context, e bindings.Event) ([]byte, error) {
	s.mu.Lock()
	s.held = append(s.held, string(e.Data))
	s.mu.Unlock()
	select {
	case <-s.release:
		return append([]byte("got "), e.Data...), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *slowSink) wait(t *testing.T, n int) []string {
	t.Helper()
	var held []string
	testutil.Eventually(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if held = s.held; len(held) < n {
			return fmt.Errorf("%d of %d events", len(held), n)
		}
		return nil
	})
	return held
}

// receive opens an input that delivers to sink.
func receive(t *testing.T, sink bindings.Sink) (*pluggabletest.Input, *pluggabletest.Process, bindings.Binding,
	*testutil.Output) {
	t.Helper()
	folder, server, log := pluggabletest.Folder(t), &pluggabletest.Input{}, &testutil.Output{}
	p := pluggabletest.Start(t, folder, "queue", server.Register)
	o := options(t, folder, "bindings.queue")
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	b, err := pluggable.OpenBinding(soon(t), o, bindings.Direction{Input: true})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, b.Close(soon(t))) })
	testutil.Must(t, b.Input.Start(soon(t), sink))
	return server, p, b, log
}

// TestInput_BoundsEventsInProgress sends more events than may be in progress. Each must be acknowledged with its own
// id and answer.
func TestInput_BoundsEventsInProgress(t *testing.T) {
	sink := newSlowSink()
	server, _, _, _ := receive(t, sink)
	acks := map[string]<-chan *components.ReadRequest{}
	for i := range pluggable.MaxEvents + 5 {
		id := fmt.Sprint("id ", i)
		acks[id] = server.Send(t, id, id)
	}
	if n := len(sink.wait(t, pluggable.MaxEvents)); n != pluggable.MaxEvents {
		t.Errorf("%d events are in progress, the limit is %d", n, pluggable.MaxEvents)
	}
	sink.release <- struct{}{}
	sink.wait(t, pluggable.MaxEvents+1)
	close(sink.release)
	for id, ack := range acks {
		got := <-ack
		if got.GetMessageId() != id || string(got.GetResponseData()) != "got "+id || got.GetResponseError() != nil {
			t.Errorf("the acknowledgement of %s is %v", id, got)
		}
	}
}

// TestInput_DropsEventWithIDInProgress sends two events with the same id. The input drops the second event, because
// an acknowledgement could mean either event.
func TestInput_DropsEventWithIDInProgress(t *testing.T) {
	sink := newSlowSink()
	server, _, _, log := receive(t, sink)
	server.Send(t, "same", "first")
	server.Send(t, "same", "second")
	third := server.Send(t, "other", "third")
	sink.wait(t, 2)
	close(sink.release)
	<-third
	for _, data := range sink.wait(t, 2) {
		if data == "second" {
			t.Error("the second event was delivered")
		}
	}
	if !strings.Contains(log.String(), "another one with the same id") {
		t.Errorf("log: %s", log)
	}
}

func TestInput_OpensStreamAgain(t *testing.T) {
	sink := bindingstest.NewSink()
	server, p, _, log := receive(t, sink)
	<-server.Send(t, "", "1")
	server.EndStream()
	<-server.Send(t, "", "2") // Send uses the next stream
	p.Kill()
	p.Run()
	<-server.Send(t, "", "3")
	if got := sink.Wait(t, 3); string(got[2].Data) != "3" || got[2].Metadata["from"] != "test" {
		t.Errorf("events are %v", got)
	}
	if n, _ := p.Instances.Inits(); n != 2 {
		t.Errorf("Init was called %d times, want once for each process", n)
	}
	if text := log.String(); !strings.Contains(text, "the stream of events has ended") ||
		!strings.Contains(text, "events are received again") {
		t.Errorf("log: %s", text)
	}
}

func TestInput_StartFailsWithoutProcess(t *testing.T) {
	folder, server := pluggabletest.Folder(t), &pluggabletest.Input{}
	p := pluggabletest.Start(t, folder, "queue", server.Register,
		(&pluggabletest.Output{Operations: []string{"create"}}).Register)
	b := openBinding(t, folder, bindings.Direction{})
	defer func() { testutil.Must(t, b.Close(soon(t))) }()
	p.Kill()
	testutil.Eventually(t, func() error { // the node notices the end
		if _, err := b.Output.Invoke(soon(t), bindings.Request{Operation: "create"}); err == nil {
			return errors.New("the process still answers")
		}
		return nil
	})
	if err := b.Input.Start(soon(t), newSlowSink()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a start without a process: %v", err)
	}
	p.Run()
	sink := bindingstest.NewSink()
	testutil.Eventually(t, func() error { return b.Input.Start(soon(t), sink) })
	<-server.Send(t, "", "1")
	sink.Wait(t, 1)
}

// TestInput_PausesWithApplication sends an event while the application accepts no events.
func TestInput_PausesWithApplication(t *testing.T) {
	sink := newSlowSink()
	close(sink.release)
	sink.pause(true)
	server, _, _, _ := receive(t, sink)
	ack := server.Send(t, "", "1")
	select {
	case <-ack:
		t.Error("the event was acknowledged while the application takes none")
	case <-time.After(50 * time.Millisecond):
	}
	sink.pause(false)
	if got := <-ack; got.GetResponseError() != nil {
		t.Errorf("acknowledgement %v", got)
	}
}

// TestInput_CloseLetsEventsEnd closes a binding while an event is in progress. Close waits until the event is
// acknowledged.
func TestInput_CloseLetsEventsEnd(t *testing.T) {
	sink := newSlowSink()
	server, _, b, _ := receive(t, sink)
	ack := server.Send(t, "", "1")
	sink.wait(t, 1)
	closed := make(chan error)
	go func() { closed <- b.Close(soon(t)) }()
	select {
	case <-closed:
		t.Error("closed while an event is in progress")
	case <-time.After(50 * time.Millisecond):
	}
	close(sink.release)
	if got := <-ack; string(got.GetResponseData()) != "got 1" {
		t.Errorf("acknowledgement %v", got)
	}
	testutil.Must(t, <-closed)
}

// TestInput_CloseCancelsEventsAtDeadline closes a binding while an event hangs.
func TestInput_CloseCancelsEventsAtDeadline(t *testing.T) {
	sink := newSlowSink()
	server, _, b, _ := receive(t, sink)
	server.Send(t, "", "1")
	sink.wait(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testutil.Must(t, b.Close(ctx))
}

func TestBinding_BothSides(t *testing.T) {
	folder, in := pluggabletest.Folder(t), &pluggabletest.Input{}
	p := pluggabletest.Start(t, folder, "queue", in.Register,
		(&pluggabletest.Output{Operations: []string{"create"}}).Register)
	for direction, want := range map[bindings.Direction][2]bool{
		{}: {true, true}, {Input: true, Output: true}: {true, true}, {Input: true}: {true, false},
		{Output: true}: {false, true},
	} {
		b := openBinding(t, folder, direction)
		if got := [2]bool{b.Input != nil, b.Output != nil}; got != want {
			t.Errorf("direction %+v: input and output are %v, want %v", direction, got, want)
		}
		testutil.Must(t, b.Close(soon(t)))
		testutil.Must(t, b.Close(soon(t)))
	}
	p.Kill()
	p.Services = []pluggabletest.Service{(&pluggabletest.Secrets{}).Register}
	p.Run()
	for _, d := range []bindings.Direction{{}, {Input: true}, {Output: true}} {
		_, err := pluggable.OpenBinding(soon(t), options(t, folder, "bindings.queue"), d)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "Binding; it has: dapr.proto.comp") {
			t.Errorf("direction %+v: %v", d, err)
		}
	}
}

func TestOutput_RefusesOperations(t *testing.T) {
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, operations := range map[string][]string{"many": many, "empty": {""}, "of two lines": {"a\nb"},
		"long": {strings.Repeat("o", 101)}} {
		folder := pluggabletest.Folder(t)
		pluggabletest.Start(t, folder, "queue", (&pluggabletest.Output{Operations: operations}).Register)
		_, err := pluggable.OpenBinding(soon(t), options(t, folder, "bindings.queue"), bindings.Direction{})
		if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOutput_SentOnce starts a second process, and then kills the first process while it executes an operation.
func TestOutput_SentOnce(t *testing.T) {
	folder, begun := pluggabletest.Folder(t), make(chan struct{}, 2)
	server := func() *pluggabletest.Output {
		return &pluggabletest.Output{Operations: []string{"create"},
			Before: func(ctx context.Context, _ *components.InvokeRequest) error {
				begun <- struct{}{}
				<-ctx.Done()
				return errors.New("killed")
			}}
	}
	p := pluggabletest.Start(t, folder, "queue", server().Register)
	b := openBinding(t, folder, bindings.Direction{})
	defer func() { testutil.Must(t, b.Close(soon(t))) }()
	ended := make(chan error)
	go func() {
		_, err := b.Output.Invoke(soon(t), bindings.Request{Operation: "create"})
		ended <- err
	}()
	<-begun
	pluggabletest.Start(t, folder, "queue", server().Register)
	p.Kill()
	if err := <-ended; !fault.Is(err, fault.Indeterminate) {
		t.Errorf("%v", err)
	}
	if len(begun) > 0 {
		t.Error("the operation was sent twice")
	}
}
