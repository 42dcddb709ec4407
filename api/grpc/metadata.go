package grpc

import (
	"context"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
)

// keyVersion is the metadata key of the runtime version. The field runtime_version has the same value, but some
// clients read only this key.
const keyVersion = "daprRuntimeVersion"

// runtimeMethods serves the methods about the runtime itself: its metadata and its shutdown.
type runtimeMethods struct {
	app      api.App
	metadata *api.Metadata
	stop     func(force bool)
}

// GetMetadata describes the runtime as the application sees it.
func (s *runtimeMethods) GetMetadata(context.Context,
	*runtimev1.GetMetadataRequest) (*runtimev1.GetMetadataResponse, error) {
	d, set := s.metadata.Describe()
	set[keyVersion] = d.RuntimeVersion
	out := &runtimev1.GetMetadataResponse{
		Id: s.app.ID, RuntimeVersion: d.RuntimeVersion, EnabledFeatures: d.Features, ExtendedMetadata: set,
		ActorRuntime: &runtimev1.ActorRuntime{
			RuntimeStatus: runtimev1.ActorRuntime_ActorRuntimeStatus(
				runtimev1.ActorRuntime_ActorRuntimeStatus_value[d.Actors.Status]),
			HostReady: d.Actors.HostReady, Placement: d.Actors.Placement,
		},
		AppConnectionProperties: &runtimev1.AppConnectionProperties{
			Port: int32(d.Channel.Port), Protocol: d.Channel.Protocol, ChannelAddress: d.Channel.Address,
			MaxConcurrency: int32(d.Channel.MaxConcurrency),
		},
		Workflows: &runtimev1.MetadataWorkflows{ConnectedWorkers: int32(d.Workers)}, //nolint:gosec // few
	}
	for _, a := range d.Actors.Active {
		out.ActorRuntime.ActiveActors = append(out.ActorRuntime.ActiveActors,
			&runtimev1.ActiveActorsCount{Type: a.Type, Count: int32(a.Count)}) //nolint:gosec // far fewer
	}
	//lint:ignore SA1019 the SDKs for Python and JavaScript read this list
	out.ActiveActorsCount = out.ActorRuntime.ActiveActors
	if h := d.Channel.Health; h != nil {
		out.AppConnectionProperties.Health = &runtimev1.AppConnectionHealthProperties{HealthCheckPath: h.Path,
			HealthProbeInterval: h.Interval.String(), HealthProbeTimeout: h.Timeout.String(),
			HealthThreshold: int32(h.Threshold)}
	}
	for _, c := range d.Components {
		out.RegisteredComponents = append(out.RegisteredComponents, &runtimev1.RegisteredComponents{
			Name: c.Name, Type: c.Type, Version: c.Version, Capabilities: c.Capabilities,
		})
	}
	for _, name := range d.HTTPEndpoints {
		out.HttpEndpoints = append(out.HttpEndpoints, &runtimev1.MetadataHTTPEndpoint{Name: name})
	}
	for _, name := range d.Resiliencies {
		out.Resiliencies = append(out.Resiliencies, &runtimev1.MetadataResiliency{Name: name})
	}
	for i := range d.Subscriptions {
		out.Subscriptions = append(out.Subscriptions, subscriptionOf(&d.Subscriptions[i]))
	}
	return out, nil
}

func subscriptionOf(s *api.SubscriptionInfo) *runtimev1.PubsubSubscription {
	out := &runtimev1.PubsubSubscription{PubsubName: s.PubSub, Topic: s.Topic, Metadata: s.Metadata,
		DeadLetterTopic: s.DeadLetter, Rules: &runtimev1.PubsubSubscriptionRules{},
		Type: runtimev1.PubsubSubscriptionType(runtimev1.PubsubSubscriptionType_value[s.Kind])}
	for _, r := range s.Rules {
		out.Rules.Rules = append(out.Rules.Rules, &runtimev1.PubsubSubscriptionRule{Match: r.Match, Path: r.Path})
	}
	return out
}

// SetMetadata stores a value that GetMetadata returns.
func (s *runtimeMethods) SetMetadata(_ context.Context, in *runtimev1.SetMetadataRequest) (*emptypb.Empty, error) {
	if err := s.metadata.Set(in.GetKey(), in.GetValue()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// keyForce is the metadata key that requests a shutdown without a grace period.
const keyForce = "dapr-force-shutdown"

// Shutdown makes the process stop. The process first answers all calls in progress, including this one. If the
// metadata key keyForce of the request has the value "true", the process waits only a short time for them.
func (s *runtimeMethods) Shutdown(ctx context.Context, _ *runtimev1.ShutdownRequest) (*emptypb.Empty, error) {
	s.stop(first(ctx, keyForce) == "true")
	return &emptypb.Empty{}, nil
}

// healthServer implements the standard gRPC health service. The server and the Dapr service have the status SERVING
// when the start of the node is complete.
type healthServer struct {
	healthv1.UnimplementedHealthServer
	*core
	health *api.Health
}

// watchEvery is the interval at which a health watch checks the health of the node. The health changes rarely, for
// example when the start of the node is complete.
const watchEvery = 250 * time.Millisecond

func (h *healthServer) Check(_ context.Context, in *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse,
	error) {
	if !known(in.GetService()) {
		return nil, status.Error(codes.NotFound, "no service of that name is served here")
	}
	return &healthv1.HealthCheckResponse{Status: h.status()}, nil
}

func known(service string) bool {
	return service == "" || service == runtimev1.Dapr_ServiceDesc.ServiceName ||
		service == healthv1.Health_ServiceDesc.ServiceName
}

func (h *healthServer) status() healthv1.HealthCheckResponse_ServingStatus {
	if h.life.Err() != nil || h.health.Started("") != nil {
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	return healthv1.HealthCheckResponse_SERVING
}

func (h *healthServer) Watch(in *healthv1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := healthv1.HealthCheckResponse_UNKNOWN
	for {
		now := healthv1.HealthCheckResponse_SERVICE_UNKNOWN
		if known(in.GetService()) {
			now = h.status()
		}
		if now != last {
			if err := stream.Send(&healthv1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.life.Done():
			return status.Error(codes.Unavailable, "the runtime is stopping")
		case <-tick.C:
		}
	}
}
