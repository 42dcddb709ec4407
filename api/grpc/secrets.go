package grpc

import (
	"context"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/api"
)

// secretMethods serves secrets.
type secretMethods struct {
	secrets *api.Secrets
}

// GetSecret reads one secret. If the secret does not exist, the answer is empty.
func (s *secretMethods) GetSecret(ctx context.Context,
	in *runtimev1.GetSecretRequest) (*runtimev1.GetSecretResponse, error) {
	secret, err := s.secrets.Get(ctx, api.SecretRequest{Store: in.GetStoreName(), Name: in.GetKey(),
		Metadata: in.GetMetadata()})
	if err != nil {
		return nil, err
	}
	return &runtimev1.GetSecretResponse{Data: secret}, nil
}

// GetBulkSecret reads all secrets of a store that the application may read.
func (s *secretMethods) GetBulkSecret(ctx context.Context,
	in *runtimev1.GetBulkSecretRequest) (*runtimev1.GetBulkSecretResponse, error) {
	secrets, err := s.secrets.BulkGet(ctx, api.SecretRequest{Store: in.GetStoreName(), Metadata: in.GetMetadata()})
	if err != nil {
		return nil, err
	}
	out := &runtimev1.GetBulkSecretResponse{Data: make(map[string]*runtimev1.SecretResponse, len(secrets))}
	for name, secret := range secrets {
		out.Data[name] = &runtimev1.SecretResponse{Secrets: secret}
	}
	return out, nil
}
