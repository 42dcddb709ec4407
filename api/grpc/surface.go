package grpc

import (
	"context"
	"strings"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
)

// ownServices begins the full names of the methods that Quorate has and Dapr has not.
const ownServices = "/quorate.runtime.v1."

// served returns an Unimplemented error if the Configuration resource disables a method of the services of Quorate or
// Dapr. It returns nil for all other services, because they belong to applications.
func (s *Server) served(method string) error {
	name, ours := strings.CutPrefix(method, "/"+runtimev1.Dapr_ServiceDesc.ServiceName+"/")
	if own, ok := strings.CutPrefix(method, ownServices); ok {
		name, ours = strings.Replace(own, "/", "", 1), true // such as StateWatch
	}
	if !ours {
		return nil
	}
	if err := s.surface.GRPC(name); err != nil {
		return status.Error(codes.Unimplemented, api.AsError(err).Message)
	}
	return nil
}

// logCall logs a call that has ended.
func (s *Server) logCall(ctx context.Context, method string, err error, begun time.Time) {
	s.calls.GRPC(func() api.LoggedCall {
		return api.LoggedCall{Method: method, Endpoint: method, UserAgent: first(ctx, "user-agent"),
			Code: int(status.Code(err)), Size: -1, Health: isOpen(method), Begun: begun}
	})
}
