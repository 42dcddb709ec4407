package grpc_test

import (
	"maps"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api/apitest"
)

// Spans have the names and attributes of Dapr, so that dashboards and searches for Dapr work.
func TestSpans_HaveNamesAndAttributesOfDapr(t *testing.T) {
	spans := &apitest.Spans{}
	f := newFixture(t)
	f.config.Tracer = spans
	conn := f.serve(t)
	c := runtimev1.NewDaprClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", apitest.Parent)
	const service = "/dapr.proto.runtime.v1.Dapr/"
	store := func(system, name, method string) map[string]string {
		return map[string]string{"db.system": system, "db.connection_string": system, "db.name": name,
			"db.statement": service + method, "rpc.service": "Dapr"}
	}
	for method, row := range map[string]struct {
		call func() error
		more map[string]string
	}{
		"GetState": {func() error {
			_, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
			return err
		}, store("state", "orders", "GetState")},
		"GetSecret": {func() error {
			_, err := c.GetSecret(ctx, &runtimev1.GetSecretRequest{StoreName: "absent", Key: "a"})
			return err
		}, store("secrets", "absent", "GetSecret")},
		"GetConfiguration": {func() error {
			_, err := c.GetConfiguration(ctx, &runtimev1.GetConfigurationRequest{StoreName: "items"})
			return err
		}, nil},
		"GetJob": {func() error {
			_, err := c.GetJob(ctx, &runtimev1.GetJobRequest{Name: "absent"})
			return err
		}, nil},
		"UnregisterActorTimer": {func() error {
			_, err := c.UnregisterActorTimer(ctx, &runtimev1.UnregisterActorTimerRequest{ActorType: "T", ActorId: "1",
				Name: "x"})
			return err
		}, map[string]string{"dapr.actor": "T.1"}},
		"SubscribeConfiguration": {func() error {
			s, err := c.SubscribeConfiguration(ctx, &runtimev1.SubscribeConfigurationRequest{StoreName: "absent"})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}, nil},
	} {
		err := row.call()
		want := map[string]string{"dapr.protocol": "grpc", "dapr.api": service + method}
		maps.Copy(want, row.more)
		list := spans.Take()
		if len(list) != 1 || list[0].Name != service+method || list[0].Parent != apitest.Parent || !list[0].Ended ||
			(list[0].Err == nil) != (err == nil) || !maps.Equal(list[0].Attributes, want) {
			t.Errorf("%s gave %v: %+v, want %v", method, err, list, want)
		}
	}
	if _, err := c.GetMetadata(ctx, &runtimev1.GetMetadataRequest{}); err != nil || len(spans.Take()) > 0 {
		t.Errorf("metadata: %v", err)
	}
	err := conn.Invoke(ctx, "/service.of.an.App/GetState", &runtimev1.GetMetadataRequest{}, &emptypb.Empty{})
	if list := spans.Take(); err == nil || len(list) > 0 {
		t.Errorf("a forwarded call: %v, spans %+v", err, list)
	}
	spans.Off = true
	if _, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"}); err != nil {
		t.Error(err)
	}
}
