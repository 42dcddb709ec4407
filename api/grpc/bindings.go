package grpc

import (
	"context"
	"maps"
	"strings"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/bindings"
)

// bindingMethods serves output bindings.
type bindingMethods struct {
	bindings *api.Bindings // nil = they are not served
}

// InvokeBinding executes one operation of an output binding. If the external system returns an error, the metadata of
// its response becomes header fields with names of the form metadata.<name>.
func (s *bindingMethods) InvokeBinding(ctx context.Context,
	in *runtimev1.InvokeBindingRequest) (*runtimev1.InvokeBindingResponse, error) {
	if s.bindings == nil {
		return unimplemented{}.InvokeBinding(ctx, in)
	}
	if err := api.CheckBaggage(metadata.ValueFromIncomingContext(ctx, "baggage")); err != nil {
		return nil, err
	}
	r, err := s.bindings.Invoke(ctx, in.GetName(),
		bindings.Request{Operation: in.GetOperation(), Data: in.GetData(),
			Metadata: bindingMetadata(ctx, in.GetMetadata())})
	if err != nil {
		if r != nil {
			_ = grpc.SetHeader(ctx, bindingHeader(r.Metadata)) // fails only outside of a call
		}
		return nil, err
	}
	if r == nil {
		return &runtimev1.InvokeBindingResponse{}, nil
	}
	return &runtimev1.InvokeBindingResponse{Data: r.Data, Metadata: r.Metadata}, nil
}

// traceKeys returns the gRPC metadata keys that carry the trace context. Their values are passed on to the external
// system.
func traceKeys() []string { return []string{keyTraceparent, "tracestate", "baggage"} }

// bindingMetadata returns the metadata of a request, with the trace of the call added.
func bindingMetadata(ctx context.Context, given map[string]string) map[string]string {
	out := maps.Clone(given)
	for _, key := range traceKeys() {
		v := strings.Join(metadata.ValueFromIncomingContext(ctx, key), ",")
		if key == keyTraceparent && v == "" {
			v = parentOf(ctx)
		}
		if v != "" && out[key] == "" {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = v
		}
	}
	return out
}

// bindingHeader converts binding metadata to gRPC header fields. It omits entries that gRPC cannot send.
func bindingHeader(from map[string]string) metadata.MD {
	md := metadata.MD{}
	for name, value := range from {
		if key := "metadata." + name; sendable(key, value) {
			md.Append(key, value)
		}
	}
	return md
}

// sendable reports whether gRPC can carry a header field with this key and value.
func sendable(key, value string) bool {
	for _, c := range []byte(key) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
