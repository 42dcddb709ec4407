package grpc_test

import (
	"log/slog"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
)

func TestCalls_AreReportedToWatchesWithTheirConsistency(t *testing.T) {
	f := newFixture(t)
	f.config.Calls = api.NewCallLog(slog.New(slog.DiscardHandler))
	c := runtimev1.NewDaprClient(f.serve(t))
	ready := make(chan struct{}, 1)
	w, err := f.config.Calls.Watch(api.CallFilter{}, ready)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", apitest.Parent)
	var header metadata.MD
	if _, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"},
		grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	<-ready
	calls, _ := w.Take()
	if len(calls) != 1 || len(header["quorate-consistency"]) != 1 {
		t.Fatalf("got %+v, header %v", calls, header)
	}
	if got := calls[0]; got.App != f.App.ID || got.Route != runtimev1.Dapr_GetState_FullMethodName || got.Code != 0 ||
		got.Level != header["quorate-consistency"][0] || got.Trace != api.TraceID(apitest.Parent) || got.Failed {
		t.Errorf("got %+v", got)
	}
}
