package pluggabletest

import (
	"context"
	"maps"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Secrets serves a secret store.
type Secrets struct {
	components.UnimplementedSecretStoreServer

	Secrets map[string]map[string]string
	Offers  []string // features that the process reports
	// Before is called before each call, with the name of the method; nil = nothing.
	Before func(ctx context.Context, method string) error

	instances *Instances
}

// Register registers the secret store with the server. To add s to a Process, use s.Register as a Service.
func (s *Secrets) Register(server *grpc.Server, i *Instances) {
	if s.instances != i { // calls of an earlier incarnation may still read it
		s.instances = i
	}
	components.RegisterSecretStoreServer(server, s)
}

func (s *Secrets) before(ctx context.Context, method string) error {
	if s.Before != nil {
		if err := s.Before(ctx, method); err != nil {
			return err
		}
	}
	return s.instances.Check(ctx)
}

// Init implements components.SecretStoreServer.
func (s *Secrets) Init(ctx context.Context, r *components.SecretStoreInitRequest) (*components.SecretStoreInitResponse,
	error) {
	return &components.SecretStoreInitResponse{}, s.instances.Init(ctx, r.GetMetadata().GetProperties())
}

// Features implements components.SecretStoreServer.
func (s *Secrets) Features(ctx context.Context, _ *components.FeaturesRequest) (*components.FeaturesResponse, error) {
	return &components.FeaturesResponse{Features: s.Offers}, s.before(ctx, "Features")
}

// Get implements components.SecretStoreServer.
func (s *Secrets) Get(ctx context.Context, r *components.GetSecretRequest) (*components.GetSecretResponse, error) {
	if err := s.before(ctx, "Get"); err != nil {
		return nil, err
	}
	secret, ok := s.Secrets[r.GetKey()]
	if !ok {
		return nil, status.Error(codes.NotFound, "no such secret")
	}
	return &components.GetSecretResponse{Data: maps.Clone(secret)}, nil
}

// BulkGet implements components.SecretStoreServer.
func (s *Secrets) BulkGet(ctx context.Context, _ *components.BulkGetSecretRequest) (*components.BulkGetSecretResponse,
	error) {
	if err := s.before(ctx, "BulkGet"); err != nil {
		return nil, err
	}
	out := &components.BulkGetSecretResponse{Data: map[string]*components.SecretResponse{}}
	for name, secret := range s.Secrets {
		out.Data[name] = &components.SecretResponse{Secrets: maps.Clone(secret)}
	}
	return out, nil
}
