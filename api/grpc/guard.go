package grpc

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
)

// keyToken is the metadata key of the API token.
const keyToken = "dapr-api-token"

// reflectionServices is the prefix of the full method names in all versions of the reflection service.
const reflectionServices = "/grpc.reflection."

// isOpen reports whether calls of a method need no token. This is true only for the health service. The full method
// name must match exactly, because a service with a similar name belongs to an application.
func isOpen(method string) bool {
	switch method {
	case healthv1.Health_Check_FullMethodName, healthv1.Health_List_FullMethodName,
		healthv1.Health_Watch_FullMethodName:
		return true
	}
	return false
}

// check returns an error unless the call has a valid token or needs none.
func (s *Server) check(md metadata.MD, method string) error {
	if !s.tokens.Required() || isOpen(method) {
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

// enter must be called when the server begins to serve a call. A unary call begins when its message has arrived, and
// enter stops the timer that limits the wait for this message. The caller must call leave when the call ends. leave is
// never nil. If the call needs a token, the connection limit does not close its connection before leave is called.
//
// enter returns an error if a streaming call was refused when it arrived. Refused unary calls were already answered by
// Server.guard.
func enter(ctx context.Context, method string) (leave func(), err error) {
	if err := arrived(ctx); err != nil {
		return func() {}, err
	}
	if isOpen(method) {
		return func() {}, nil
	}
	return hold(ctx), nil
}

// first returns the first value of a metadata key, or "".
func first(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// unary serves one unary call. It checks whether the method is served, calls the handler, logs and counts the call, and
// recovers from panics. The request timeout applies, except to methods that call an application or an actor, or wait
// for a workflow instance.
func (s *Server) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (out any,
	err error) {
	begun := time.Now()
	ctx, level := s.recordLevel(ctx)
	s.metrics.inFlight.Add(1)
	var span api.RequestSpan // nil = none
	defer func() {
		if cause := recover(); cause != nil {
			out, err = nil, s.panicked(info.FullMethod, cause)
		}
		err = s.answer(info.FullMethod, err)
		if span != nil {
			span.End(0, err)
		}
		s.metrics.observe(info.FullMethod, status.Code(err), time.Since(begun))
		s.logCall(ctx, info.FullMethod, level.reported(), err, begun)
	}()
	leave, err := enter(ctx, info.FullMethod)
	defer leave()
	if err == nil {
		err = s.served(info.FullMethod)
	}
	if err != nil {
		return nil, err
	}
	s.awaitStart(ctx, info.FullMethod)
	ctx, span = s.startSpan(ctx, info.FullMethod, in)
	if callsApp(info.FullMethod) || waits(info.FullMethod) {
		return handle(ctx, in)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return handle(ctx, in)
}

// callsApp reports whether a method calls an application or an actor. Such calls have no time limit.
func callsApp(method string) bool {
	return method == runtimev1.Dapr_InvokeService_FullMethodName || method == runtimev1.Dapr_InvokeActor_FullMethodName
}

// stream serves one streaming call like unary, but without a time limit.
func (s *Server) stream(owner any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) (err error) {
	begun := time.Now()
	s.metrics.inFlight.Add(1)
	var span api.RequestSpan // nil = none
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(info.FullMethod, cause)
		}
		err = s.answer(info.FullMethod, err)
		if span != nil {
			span.End(0, err)
		}
		s.metrics.observe(info.FullMethod, status.Code(err), time.Since(begun))
		s.logCall(stream.Context(), info.FullMethod, "", err, begun)
	}()
	leave, err := enter(stream.Context(), info.FullMethod)
	defer leave()
	if err == nil {
		err = s.served(info.FullMethod)
	}
	if err != nil {
		return err
	}
	s.awaitStart(stream.Context(), info.FullMethod)
	if strings.HasPrefix(info.FullMethod, "/"+runtimev1.Dapr_ServiceDesc.ServiceName+"/") { // not forwarded
		_, span = s.startSpan(stream.Context(), info.FullMethod, nil)
	}
	if r := s.receiver(stream.Context(), info.FullMethod, !info.IsClientStream); r != nil {
		defer r.finish()
		guarded := &guardedStream{ServerStream: stream, from: r,
			reflection: strings.HasPrefix(info.FullMethod, reflectionServices)}
		if owner != nil { // not forwarded
			guarded.keep = context.AfterFunc(s.life, r.arrival.cancel)
			defer guarded.keep()
		}
		stream = guarded
	}
	return handle(owner, stream)
}

// awaitStart blocks until the node has started, the request timeout has passed, or ctx ends. It does not block for
// the metadata, shutdown and health methods, which a starting node also serves.
func (s *Server) awaitStart(ctx context.Context, method string) {
	switch method {
	case runtimev1.Dapr_GetMetadata_FullMethodName, runtimev1.Dapr_SetMetadata_FullMethodName,
		runtimev1.Dapr_Shutdown_FullMethodName:
		return
	}
	if !isOpen(method) {
		s.start.Wait(ctx, s.timeout)
	}
}

// panicked logs a panic and returns the error for the client. It logs the text of the panic only for runtime errors of
// Go, because other texts may contain a value of a client.
func (s *Server) panicked(method string, cause any) error {
	text := "withheld: it may contain a value"
	if e, ok := cause.(interface{ RuntimeError() }); ok {
		text = e.(error).Error()
	}
	s.log.Error("a call ended in a panic; please report it", "method", method, "panic", text, "stack",
		string(debug.Stack()))
	return api.Panicked()
}

// answer returns the gRPC error for a failed call, or nil if err is nil. It logs internal errors and errors about
// damaged data, because only the operator of the node can fix them.
func (s *Server) answer(method string, err error) error {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok { // from grpc-go or the generated code
		if st.Code() == codes.Unimplemented && st.Message() == "method "+methodName(method)+" not implemented" {
			return status.Error(codes.Unimplemented, api.MethodNotServed(methodName(method)))
		}
		return err
	}
	e := api.AsError(err)
	if e.Details.Reason == api.ReasonInternal || e.Details.Reason == api.ReasonCorrupt {
		s.log.Error("a call failed", "method", method, "code", e.Code, "error", e.Message)
	}
	return statusOf(method, e)
}

// methodName returns the last part of a full method name.
func methodName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }
