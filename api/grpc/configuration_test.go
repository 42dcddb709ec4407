package grpc_test

import (
	"context"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/configuration"
)

// configurationCalls has the methods for configuration, all in their stable or all in their alpha form.
type configurationCalls struct {
	get func(context.Context, *runtimev1.GetConfigurationRequest,
		...grpc.CallOption) (*runtimev1.GetConfigurationResponse, error)
	subscribe func(context.Context,
		*runtimev1.SubscribeConfigurationRequest) (grpc.ServerStreamingClient[runtimev1.SubscribeConfigurationResponse],
		error)
	unsubscribe func(context.Context, *runtimev1.UnsubscribeConfigurationRequest,
		...grpc.CallOption) (*runtimev1.UnsubscribeConfigurationResponse, error)
}

func TestConfiguration_StableAndAlphaForms(t *testing.T) {
	f := newFixture(t)
	d := runtimev1.NewDaprClient(f.serve(t))
	writer := f.Configurations.List[0].Store.(configuration.Writer)
	for name, c := range map[string]configurationCalls{
		"stable": {d.GetConfiguration, func(ctx context.Context, in *runtimev1.SubscribeConfigurationRequest) (
			grpc.ServerStreamingClient[runtimev1.SubscribeConfigurationResponse], error) {
			return d.SubscribeConfiguration(ctx, in)
		}, d.UnsubscribeConfiguration},
		"alpha": {d.GetConfigurationAlpha1, func(ctx context.Context, in *runtimev1.SubscribeConfigurationRequest) (
			grpc.ServerStreamingClient[runtimev1.SubscribeConfigurationResponse], error) {
			return d.SubscribeConfigurationAlpha1(ctx, in)
		}, d.UnsubscribeConfigurationAlpha1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			write := func(change configuration.Change) {
				t.Helper()
				_, err := writer.Write(ctx, configuration.WriteRequest{Changes: []configuration.Change{change}})
				must(t, err)
			}
			stream, err := c.subscribe(ctx, &runtimev1.SubscribeConfigurationRequest{StoreName: "items",
				Keys: []string{"a"}})
			must(t, err)
			first, err := stream.Recv()
			must(t, err)
			if first.GetId() == "" || len(first.GetItems()) != 0 {
				t.Errorf("the first message is %v", first)
			}
			write(configuration.Change{Item: configuration.Item{Key: "a", Value: name,
				Metadata: map[string]string{"x": "y"}}})
			next, err := stream.Recv()
			must(t, err)
			item := next.GetItems()["a"]
			if next.GetId() != first.GetId() || item.GetValue() != name || item.GetMetadata()["x"] != "y" {
				t.Errorf("delivered %v", next)
			}
			got, err := c.get(ctx, &runtimev1.GetConfigurationRequest{StoreName: "items", Keys: []string{"a",
				"absent"}})
			must(t, err)
			if len(got.GetItems()) != 1 || got.GetItems()["a"].GetVersion() != item.GetVersion() {
				t.Errorf("got %v, not %v", got, item)
			}
			write(configuration.Change{Item: configuration.Item{Key: "a"}, Delete: true})
			next, err = stream.Recv()
			must(t, err)
			if item, ok := next.GetItems()["a"]; !ok || item.GetVersion() != "" || item.GetValue() != "" {
				t.Errorf("a deleted key is %v", next)
			}
			empty, err := c.get(ctx, &runtimev1.GetConfigurationRequest{StoreName: "items"})
			if err != nil || len(empty.GetItems()) != 0 {
				t.Errorf("%v, %v", empty, err)
			}
			ended, err := c.unsubscribe(ctx, &runtimev1.UnsubscribeConfigurationRequest{StoreName: "items",
				Id: first.GetId()})
			if err != nil || !ended.GetOk() {
				t.Errorf("%v, %v", ended, err)
			}
			if m, err := stream.Recv(); err == nil || status.Code(err) != codes.Unknown {
				t.Errorf("after the end: %v, %v", m, err) // io.EOF has the code Unknown
			}
			ended, err = c.unsubscribe(ctx, &runtimev1.UnsubscribeConfigurationRequest{StoreName: "items",
				Id: first.GetId()})
			if err != nil || ended.GetOk() {
				t.Errorf("%v, %v", ended, err)
			}
		})
	}
}

func TestConfiguration_CodesOfErrors(t *testing.T) {
	f := newFixture(t)
	d := runtimev1.NewDaprClient(f.serve(t))
	get := func(store string) error {
		_, err := d.GetConfiguration(t.Context(), &runtimev1.GetConfigurationRequest{StoreName: store})
		return err
	}
	subscribe := func(store string) error {
		s, err := d.SubscribeConfiguration(t.Context(), &runtimev1.SubscribeConfigurationRequest{StoreName: store})
		must(t, err)
		_, err = s.Recv()
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"get, unknown":         {get("nope"), codes.InvalidArgument},
		"get, fails":           {get("faulty"), codes.Internal},
		"subscribe, unknown":   {subscribe("nope"), codes.InvalidArgument},
		"subscribe, fails":     {subscribe("faulty"), codes.InvalidArgument},
		"subscribe, forbidden": {subscribe("foreign"), codes.InvalidArgument},
	} {
		if status.Code(c.err) != c.code {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	f.Configurations.List = nil
	if err := get("items"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("no store: %v", err)
	}
}
