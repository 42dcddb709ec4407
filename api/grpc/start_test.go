package grpc_test

import (
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quorate/quorate/api"
)

func TestStart_HoldsCallsUntilTheyCanBeServed(t *testing.T) {
	f := newFixture(t)
	f.config.Start = api.NewStartGate()
	conn := f.serve(t)
	client := runtimev1.NewDaprClient(conn)
	saved := make(chan error, 1)
	go func() {
		_, err := client.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders", States: states("a")})
		saved <- err
	}()
	_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = client.GetMetadata(t.Context(), &runtimev1.GetMetadataRequest{})
	must(t, err)
	select {
	case err := <-saved:
		t.Fatalf("a call was answered with %v before the node can serve", err)
	default:
	}
	f.config.Start.Open()
	must(t, <-saved)
}
