package grpc_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/internal/fault"
)

// A method of an actor may take longer than the request timeout.
func TestInvokeActor_HasNoTimeLimit(t *testing.T) {
	f := newFixture(t)
	f.config.RequestTimeout = 50 * time.Millisecond
	f.config.Actors = apitest.ActorsElsewhere(f.App, func(ctx context.Context) (actors.Answer, error) {
		if _, limited := ctx.Deadline(); limited {
			<-ctx.Done() // the method takes longer than any time limit
			return actors.Answer{}, fault.Wrap(ctx.Err(), "test", "the method was cut")
		}
		return actors.Answer{Status: http.StatusOK, Body: []byte("done")}, nil
	})
	answer, err := f.client(t).InvokeActor(t.Context(),
		&runtimev1.InvokeActorRequest{ActorType: "Counter", ActorId: "a", Method: "add"})
	must(t, err)
	if string(answer.GetData()) != "done" {
		t.Errorf("the answer is %q", answer.GetData())
	}
}
