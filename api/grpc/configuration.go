package grpc

import (
	"context"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/runtimepb"
	"github.com/quorate/quorate/component/configuration"
)

// configurationMethods serves Dapr's configuration methods, which cannot write items. Quorate has its own service for
// writes (see configurationServer).
type configurationMethods struct {
	*core
	configurations *configurations.Service
}

// GetConfiguration reads items.
func (s *configurationMethods) GetConfiguration(ctx context.Context,
	in *runtimev1.GetConfigurationRequest) (*runtimev1.GetConfigurationResponse, error) {
	found, err := s.configurations.Get(ctx, configurations.Request{Store: in.GetStoreName(), Keys: in.GetKeys(),
		Metadata: in.GetMetadata(), Session: first(ctx, keySession), Trace: trace(ctx)})
	if err != nil {
		return nil, err
	}
	if found.Session != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs(keySession, found.Session)) // fails only outside of a call
	}
	return &runtimev1.GetConfigurationResponse{Items: configurationItems(found.Items)}, nil
}

// GetConfigurationAlpha1 is GetConfiguration under its older name.
func (s *configurationMethods) GetConfigurationAlpha1(ctx context.Context,
	in *runtimev1.GetConfigurationRequest) (*runtimev1.GetConfigurationResponse, error) {
	return s.GetConfiguration(ctx, in)
}

func configurationItems(items []configuration.Item) map[string]*commonv1.ConfigurationItem {
	out := make(map[string]*commonv1.ConfigurationItem, len(items))
	for i := range items {
		out[items[i].Key] = &commonv1.ConfigurationItem{Value: items[i].Value, Version: items[i].Version,
			Metadata: items[i].Metadata}
	}
	return out
}

// SubscribeConfiguration sends the id of a new subscription, and then each change. The stream ends when the client
// closes it or calls UnsubscribeConfiguration.
func (s *configurationMethods) SubscribeConfiguration(in *runtimev1.SubscribeConfigurationRequest,
	out runtimev1.Dapr_SubscribeConfigurationServer) error {
	return s.subscribeConfiguration(in, out)
}

// SubscribeConfigurationAlpha1 is SubscribeConfiguration under its older name.
func (s *configurationMethods) SubscribeConfigurationAlpha1(in *runtimev1.SubscribeConfigurationRequest,
	out runtimev1.Dapr_SubscribeConfigurationAlpha1Server) error {
	return s.subscribeConfiguration(in, out)
}

// configurationSender is the stream of a subscription.
type configurationSender interface {
	Send(*runtimev1.SubscribeConfigurationResponse) error
	Context() context.Context
}

func (s *configurationMethods) subscribeConfiguration(in *runtimev1.SubscribeConfigurationRequest,
	out configurationSender) error {
	start, cancel := context.WithTimeout(out.Context(), s.timeout)
	stream, err := s.configurations.Subscribe(start, configurations.Request{Store: in.GetStoreName(),
		Keys: in.GetKeys(), Metadata: in.GetMetadata()})
	cancel()
	if err != nil {
		return err
	}
	defer stream.Close()
	send := func(m *runtimev1.SubscribeConfigurationResponse) error {
		defer context.AfterFunc(stream.Overflow(), func() { s.cut(out.Context()) })()
		return out.Send(m)
	}
	if err := send(&runtimev1.SubscribeConfigurationResponse{Id: stream.ID}); err != nil {
		return err
	}
	for {
		items, err := stream.Next(out.Context())
		if err != nil || len(items) == 0 {
			return err
		}
		if err := send(&runtimev1.SubscribeConfigurationResponse{Id: stream.ID,
			Items: configurationItems(items)}); err != nil {
			return err
		}
	}
}

// cut aborts a call after the stall timeout, unless the call has ended by then.
func (s *configurationMethods) cut(ctx context.Context) {
	if a := arrivalOf(ctx); a != nil {
		time.AfterFunc(s.stall, a.cancel)
	}
}

// UnsubscribeConfiguration ends a subscription.
func (s *configurationMethods) UnsubscribeConfiguration(_ context.Context,
	in *runtimev1.UnsubscribeConfigurationRequest) (*runtimev1.UnsubscribeConfigurationResponse, error) {
	ok, err := s.configurations.Unsubscribe(in.GetStoreName(), in.GetId())
	if err != nil {
		return nil, err
	}
	out := &runtimev1.UnsubscribeConfigurationResponse{Ok: ok}
	if !ok {
		out.Message = "there is no subscription with this id"
	}
	return out, nil
}

// UnsubscribeConfigurationAlpha1 is UnsubscribeConfiguration under its older name.
func (s *configurationMethods) UnsubscribeConfigurationAlpha1(ctx context.Context,
	in *runtimev1.UnsubscribeConfigurationRequest) (*runtimev1.UnsubscribeConfigurationResponse, error) {
	return s.UnsubscribeConfiguration(ctx, in)
}

// configurationServer implements the service quorate.runtime.v1.Configuration, which Dapr does not have.
type configurationServer struct {
	runtimepb.UnimplementedConfigurationServer
	configurations *configurations.Service
}

// Set writes configuration items, all or none.
func (s *configurationServer) Set(ctx context.Context, in *runtimepb.SetConfigurationRequest) (
	*runtimepb.SetConfigurationResponse, error) {
	changes := make([]configurations.Change, len(in.GetItems()))
	for i, item := range in.GetItems() {
		changes[i] = configurations.Change{Key: item.GetKey(), Value: item.GetValue(), Metadata: item.GetMetadata(),
			Version: item.GetVersion()}
	}
	return &runtimepb.SetConfigurationResponse{}, s.write(ctx, in.GetStoreName(), changes)
}

// Delete removes configuration items.
func (s *configurationServer) Delete(ctx context.Context, in *runtimepb.DeleteConfigurationRequest) (
	*runtimepb.DeleteConfigurationResponse, error) {
	if len(in.GetKeys()) == 0 {
		return nil, api.MalformedRequest("the request names no key")
	}
	changes := make([]configurations.Change, len(in.GetKeys()))
	for i, key := range in.GetKeys() {
		changes[i] = configurations.Change{Key: key, Delete: true}
	}
	return &runtimepb.DeleteConfigurationResponse{}, s.write(ctx, in.GetStoreName(), changes)
}

func (s *configurationServer) write(ctx context.Context, store string, changes []configurations.Change) error {
	session, err := s.configurations.Write(ctx, configurations.WriteRequest{Store: store, Changes: changes,
		Session: first(ctx, keySession), Trace: trace(ctx)})
	if err == nil && session != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs(keySession, session)) // fails only outside of a call
	}
	return err
}
