package grpc

import (
	"context"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// fullActorStream is a stream whose application reads nothing.
type fullActorStream struct {
	runtimev1.Dapr_SubscribeActorEventsAlpha1Server
	begun chan struct{}   // receives an element when Send begins
	ended context.Context //nolint:containedctx // of the stream
}

// Send implements the stream of gRPC, whose Send returns only when the stream has ended.
func (f fullActorStream) Send(*toApp) error {
	f.begun <- struct{}{}
	<-f.ended.Done()
	return context.Cause(f.ended)
}

// If the application reads nothing, a call still ends when its context ends.
func TestActorStream_CallEndsIfApplicationDoesNotRead(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	begun := make(chan struct{}, 1)
	a := &actorStream{out: fullActorStream{begun: begun, ended: ctx}, sending: make(chan struct{}, 1),
		stall: time.Hour, cut: end, ended: make(chan struct{}), waiting: map[string]chan *fromApp{}}
	attempt, over := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- a.Deactivate(attempt, api.Actor{Type: "cart", ID: "1"}) }()
	<-begun
	over()
	if err := <-failed; !fault.Is(err, fault.Indeterminate) {
		t.Errorf("a call that is being sent: %v", err)
	}
	if err := a.Deactivate(attempt, api.Actor{Type: "cart", ID: "2"}); !fault.Is(err, fault.Timeout) {
		t.Errorf("a call that waits to be sent: %v", err)
	}
	end()
	a.sending <- struct{}{} // the first Send has returned
}

// An application that reads nothing for the stall timeout loses its stream.
func TestActorStream_EndsIfApplicationDoesNotRead(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	a := &actorStream{out: fullActorStream{begun: make(chan struct{}, 1), ended: ctx}, sending: make(chan struct{}, 1),
		stall: 1, cut: end, ended: make(chan struct{}), waiting: map[string]chan *fromApp{}}
	if err := a.Deactivate(t.Context(), api.Actor{Type: "cart", ID: "1"}); !fault.Is(err, fault.Indeterminate) {
		t.Error(err)
	}
	if ctx.Err() == nil {
		t.Error("the stream goes on")
	}
}
