package grpc

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
)

// keyToken is where clients send the API token.
const keyToken = "dapr-api-token"

// openService needs no token: probes have none.
const openService = "/grpc.health.v1.Health/"

// check lets a call pass that has a token, or needs none.
func (s *Server) check(md metadata.MD, method string) error {
	if !s.tokens.Asked() || strings.HasPrefix(method, openService) {
		return nil
	}
	token := ""
	if given := md[keyToken]; len(given) > 0 {
		token = given[0]
	}
	if s.tokens.Accept(token) {
		return nil
	}
	return api.TokenInvalid()
}

// enter lets a call begin whose message has come, or that has many. Whoever opens a
// connection without a token must not keep it open against others.
func enter(ctx context.Context, method string) (leave func(), err error) {
	if err := arrived(ctx); err != nil {
		return func() {}, err
	}
	if strings.HasPrefix(method, openService) {
		return func() {}, nil
	}
	return hold(ctx), nil
}

// first returns the first value of a metadata key, or nothing.
func first(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// unary serves one call: guard, time, handler, count.
func (s *Server) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (out any, err error) {
	begun := time.Now()
	s.metrics.inFlight.Add(1)
	defer func() {
		if cause := recover(); cause != nil {
			out, err = nil, s.panicked(info.FullMethod, cause)
		}
		err = s.answer(info.FullMethod, err)
		s.metrics.observe(info.FullMethod, status.Code(err), time.Since(begun))
	}()
	leave, err := enter(ctx, info.FullMethod)
	defer leave()
	if err != nil {
		return nil, err
	}
	if info.FullMethod == runtimev1.Dapr_InvokeService_FullMethodName {
		return handle(ctx, in)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return handle(ctx, in)
}

// stream serves one streaming call. It has no time limit of its own.
func (s *Server) stream(owner any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	begun := time.Now()
	s.metrics.inFlight.Add(1)
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(info.FullMethod, cause)
		}
		err = s.answer(info.FullMethod, err)
		s.metrics.observe(info.FullMethod, status.Code(err), time.Since(begun))
	}()
	leave, err := enter(stream.Context(), info.FullMethod)
	defer leave()
	if err != nil {
		return err
	}
	return handle(owner, stream)
}

// panicked logs a panic and makes the error to answer with.
func (s *Server) panicked(method string, cause any) error {
	text := "not told: it may hold a value"
	if e, ok := cause.(interface{ RuntimeError() }); ok {
		text = e.(error).Error()
	}
	s.log.Error("a call ended in a panic; please report it", "method", method, "panic", text, "stack", string(debug.Stack()))
	return api.Panicked()
}

// answer turns an error into the one that goes to the client. What the operator of the
// node has to mend is logged: the client that reads the answer cannot.
func (s *Server) answer(method string, err error) error {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok { // of the library, or of the generated stub
		if st.Code() == codes.Unimplemented && st.Message() == "method "+methodName(method)+" not implemented" {
			return status.Error(codes.Unimplemented, notOffered(method))
		}
		return err
	}
	e := api.AsError(err)
	if e.Details.Reason == api.ReasonInternal || e.Details.Reason == api.ReasonCorrupt {
		s.log.Error("a call failed", "method", method, "code", e.Code, "error", e.Message)
	}
	return statusOf(method, e)
}

// methodName is the last part of a full method.
func methodName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

func notOffered(method string) string {
	return "this runtime does not offer " + methodName(method) + ": it serves state, actor state, secrets, invocation, bindings, metadata and shutdown"
}
