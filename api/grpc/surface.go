package grpc

import (
	"context"
	"strings"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
)

// ownServices is the prefix of the full names of the methods that only Quorate has.
const ownServices = "/quorate.runtime.v1."

// served returns an Unimplemented error if the Configuration resource disables the method. Methods of applications,
// health checks and reflection cannot be disabled.
func (s *Server) served(method string) error {
	name, ours := strings.CutPrefix(method, "/"+runtimev1.Dapr_ServiceDesc.ServiceName+"/")
	if own, ok := strings.CutPrefix(method, ownServices); ok {
		name, ours = strings.Replace(own, "/", "", 1), true // such as StateWatch
	}
	if isHub(method) {
		name, ours = "Workflow", true
	}
	if !ours {
		return nil
	}
	if err := s.surface.GRPC(name); err != nil {
		return status.Error(codes.Unimplemented, api.AsError(err).Message)
	}
	return nil
}

// logCall logs a call that has ended. level is the consistency that the answer reports, or empty if it is unknown.
func (s *Server) logCall(ctx context.Context, method, level string, err error, begun time.Time) {
	s.calls.GRPC(func() api.LoggedCall {
		return api.LoggedCall{App: s.app, Method: method, Endpoint: method, UserAgent: first(ctx, "user-agent"),
			Code: int(status.Code(err)), Size: -1, Health: isOpen(method), Begun: begun, Level: level,
			Parent: parentOf(ctx)}
	})
}

// levelStream records the consistency that the answer of a unary call reports.
type levelStream struct {
	grpc.ServerTransportStream
	level string
}

// SetHeader implements grpc.ServerTransportStream.
func (l *levelStream) SetHeader(md metadata.MD) error {
	if v := md[keyConsistency]; len(v) > 0 {
		l.level = v[0]
	}
	return l.ServerTransportStream.SetHeader(md)
}

// recordLevel returns a context that records the consistency that the answer of a unary call reports. If there is no
// open watch of API requests, or if ctx does not belong to a call, recordLevel returns ctx and nil.
func (s *Server) recordLevel(ctx context.Context) (context.Context, *levelStream) {
	if !s.calls.Watched() {
		return ctx, nil
	}
	under := grpc.ServerTransportStreamFromContext(ctx)
	if under == nil {
		return ctx, nil
	}
	out := &levelStream{ServerTransportStream: under}
	return grpc.NewContextWithServerTransportStream(ctx, out), out
}

// reported returns the recorded consistency, or "".
func (l *levelStream) reported() string {
	if l == nil {
		return ""
	}
	return l.level
}
