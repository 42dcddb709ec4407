package pluggable

import (
	"context"
	"slices"
	"strings"
	"unicode"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// maxSecretName is the longest name of a secret in bytes.
const maxSecretName = 4 << 10

// secrets is a secret store. It is safe for concurrent use.
type secrets struct {
	link     *link
	gate     secretstores.Gate
	multiple bool // feature of the first connection
}

// OpenSecrets opens a secret store. It waits for the socket until the deadline of ctx.
func OpenSecrets(ctx context.Context, o Options) (secretstores.Store, error) {
	s := &secrets{}
	first := true
	var err error
	s.link, err = openLink(ctx, o, func(ctx context.Context, c *session) error {
		if err := c.need(components.SecretStore_ServiceDesc.ServiceName); err != nil {
			return err
		}
		client := components.NewSecretStoreClient(c.conn)
		if _, err := client.Init(ctx, &components.SecretStoreInitRequest{Metadata: c.link.properties()}); err != nil {
			return c.link.uninitialised(ctx, err)
		}
		out, err := client.Features(ctx, &components.FeaturesRequest{})
		if err != nil {
			return c.link.uninitialised(ctx, err)
		}
		if first {
			s.multiple = slices.ContainsFunc(out.GetFeatures(), func(f string) bool {
				return strings.EqualFold(f, string(secretstores.FeatureMultipleKeyValues))
			})
		}
		first = false
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Features implements secretstores.Featurer.
func (s *secrets) Features() []secretstores.Feature {
	if s.multiple {
		return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
	}
	return nil
}

// Close implements secretstores.Store.
func (s *secrets) Close() error {
	if s.gate.Close() {
		s.link.close()
	}
	return nil
}

// Get implements secretstores.Store. It returns fault.NotFound for a secret without keys.
func (s *secrets) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	if name == "" || len(name) > maxSecretName || strings.ContainsFunc(name, unicode.IsControl) {
		return nil, secretstores.Absent(name, "this cannot be the name of a secret")
	}
	var out *components.GetSecretResponse
	failed := s.link.call(ctx, reading, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		out, err = components.NewSecretStoreClient(conn).Get(ctx, &components.GetSecretRequest{Key: name,
			Metadata: metadata})
		return err
	})
	switch {
	case failed.code() == codes.NotFound, failed == nil && len(out.GetData()) == 0:
		return nil, secretstores.Absent(name, s.link.who()+" has no such secret")
	case failed != nil:
		return nil, s.fault("pluggable.GetSecret", name, failed)
	}
	return out.GetData(), nil
}

// Bulk implements secretstores.Store.
func (s *secrets) Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error) {
	const op = "pluggable.BulkSecrets"
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	var answer *components.BulkGetSecretResponse
	failed := s.link.call(ctx, reading, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		answer, err = components.NewSecretStoreClient(conn).BulkGet(ctx,
			&components.BulkGetSecretRequest{Metadata: metadata})
		return err
	})
	if failed != nil {
		return nil, s.fault(op, "", failed)
	}
	if err := secretstores.Fits(len(answer.GetData())); err != nil {
		return nil, err
	}
	out := make(map[string]map[string]string, len(answer.GetData()))
	for name, secret := range answer.GetData() {
		if out[name] = secret.GetSecrets(); out[name] == nil {
			out[name] = map[string]string{}
		}
	}
	return out, nil
}

// fault converts the error of a call to a *fault.Error. It leaves out the error text of the process, which may quote a
// secret.
func (s *secrets) fault(op, name string, f *failure) error {
	if _, ours := fault.As(f.err); !ours {
		f.err = status.Error(status.Code(f.err), "(its message is not shown, because it may have a secret)")
	}
	err := s.link.fault(op, name, f, reading)
	switch fault.CodeOf(err) {
	case fault.NotFound, fault.Denied, fault.Invalid, fault.Overloaded, fault.Unavailable, fault.Timeout,
		fault.TooLarge:
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Key: name, Err: err}
}
