package remoteinvoke_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	testv1 "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/api"
	apigrpc "github.com/quorate/quorate/api/grpc"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/remoteinvoke"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/peer"
)

// orders is an application with a gRPC service of its own and with Dapr's callback service.
type orders struct {
	testv1.UnimplementedTestServiceServer
	runtimev1.UnimplementedAppCallbackServer
	seen  chan metadata.MD
	calls atomic.Int64
}

func (o *orders) UnaryCall(ctx context.Context, in *testv1.SimpleRequest) (*testv1.SimpleResponse, error) {
	o.calls.Add(1)
	md, _ := metadata.FromIncomingContext(ctx)
	select {
	case o.seen <- md:
	default:
	}
	if !in.GetFillUsername() { // with FillUsername, the application sends no headers of its own
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-head", "1", "x-head-bin", "\x00\xff"))
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "2"))
	if encodings, _ := grpc.ClientSupportedCompressors(ctx); in.GetResponseCompressed().GetValue() &&
		slices.Contains(encodings, gzip.Name) {
		_ = grpc.SetSendCompressor(ctx, gzip.Name)
	}
	if s := in.GetResponseStatus(); s.GetCode() != 0 {
		st, err := status.New(codes.Code(s.GetCode()),
			s.GetMessage()).WithDetails(&errdetails.ErrorInfo{Reason: "sold out"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &testv1.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (o *orders) FullDuplexCall(stream grpc.BidiStreamingServer[testv1.StreamingOutputCallRequest,
	testv1.StreamingOutputCallResponse]) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			stream.SetTrailer(metadata.Pairs("x-tail", "end"))
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testv1.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

func (o *orders) OnInvoke(_ context.Context, in *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	o.calls.Add(1)
	if in.GetMethod() == "code" {
		code, _ := strconv.Atoi(string(in.GetData().GetValue()))
		return &commonv1.InvokeResponse{}, status.Error(codes.Code(code), "as requested")
	}
	if in.GetMethod() == "fail" {
		st, err := status.New(codes.NotFound, "no such order").WithDetails(&errdetails.ErrorInfo{Reason: "gone"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &commonv1.InvokeResponse{Data: in.GetData(), ContentType: in.GetContentType()}, nil
}

func (o *orders) start(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	testv1.RegisterTestServiceServer(s, o)
	runtimev1.RegisterAppCallbackServer(s, o)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

// dial serves the gRPC API of a node and returns a connection to it. change may change the configuration.
func (n *node) dial(t *testing.T, change func(*apigrpc.Config)) *grpc.ClientConn {
	t.Helper()
	conf := apigrpc.Config{App: n.app, Invoke: n.invoke, Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry()}
	if change != nil {
		change(&conf)
	}
	s, err := apigrpc.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(l)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func grpcPair(t *testing.T) (a, b *node, o *orders) {
	o = &orders{seen: make(chan metadata.MD, 1)}
	w := newWorld(t)
	b = w.start("b", "orders", o.start(t), func(o *appchannel.Options) {
		o.Protocol, o.Token = appchannel.GRPC, "app-token"
	})
	a = w.start("a", "shop", "", nil)
	return a, b, o
}

func to(t *testing.T, app string, more ...string) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, append([]string{"dapr-app-id", app}, more...)...)
}

func TestProxy_CallsServiceThroughItsNode(t *testing.T) {
	a, b, o := grpcPair(t)
	for _, from := range []*node{a, b} {
		c := testv1.NewTestServiceClient(from.dial(t, nil))
		var header, trailer metadata.MD
		out, err := c.UnaryCall(to(t, "orders", "x-key", "v", "x-key-bin", "\x00\x01"),
			&testv1.SimpleRequest{Payload: &testv1.Payload{Body: []byte("hello")}}, grpc.Header(&header),
			grpc.Trailer(&trailer))
		if err != nil || string(out.GetPayload().GetBody()) != "hello" {
			t.Fatalf("%v, %v", out, err)
		}
		if header.Get("x-head")[0] != "1" || header.Get("x-head-bin")[0] != "\x00\xff" ||
			trailer.Get("x-tail")[0] != "2" {
			t.Errorf("header %v, trailer %v", header, trailer)
		}
		md := <-o.seen
		for key, want := range map[string]string{"x-key": "v", "x-key-bin": "\x00\x01",
			"dapr-caller-app-id": from.app.ID, "dapr-callee-app-id": "orders", "dapr-api-token": "app-token"} {
			if got := md.Get(key); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %q", key, got)
			}
		}
		if len(md.Get("traceparent")) == 0 || len(md.Get("dapr-app-id")) != 0 {
			t.Errorf("%v", md)
		}
		_, err = c.UnaryCall(to(t, "orders"),
			&testv1.SimpleRequest{ResponseStatus: &testv1.EchoStatus{Code: int32(codes.FailedPrecondition),
				Message: "100 % sold out\n"}})
		if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != "100 % sold out\n" ||
			len(st.Details()) != 1 {
			t.Errorf("%v %v", err, st.Details())
		}
		<-o.seen
		_, err = c.EmptyCall(to(t, "orders"), &testv1.Empty{})
		if st := status.Convert(err); st.Code() != codes.Unimplemented || !strings.Contains(st.Message(), "EmptyCall") {
			t.Errorf("%v", err)
		}
	}
}

func TestProxy_StreamsMessagesBothWays(t *testing.T) {
	a, b, _ := grpcPair(t)
	for _, from := range []*node{a, b} {
		stream, err := testv1.NewTestServiceClient(from.dial(t, nil)).FullDuplexCall(to(t, "orders"))
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range []string{"one", "", strings.Repeat("x", 300_000)} {
			if err := stream.Send(&testv1.StreamingOutputCallRequest{
				Payload: &testv1.Payload{Body: []byte(body)}}); err != nil {
				t.Fatal(err)
			}
			out, err := stream.Recv() // before the next message is sent
			if err != nil || string(out.GetPayload().GetBody()) != body {
				t.Fatalf("%v", err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) || stream.Trailer().Get("x-tail")[0] != "end" {
			t.Errorf("%v %v", err, stream.Trailer())
		}
	}
}

func TestProxy_CancelledStreamEndsAtApp(t *testing.T) {
	a, b, _ := grpcPair(t)
	ctx, cancel := context.WithCancel(to(t, "orders"))
	stream, err := testv1.NewTestServiceClient(a.dial(t, nil)).FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&testv1.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if b.channel.InFlight() != 1 {
		t.Errorf("%d in flight", b.channel.InFlight())
	}
	cancel()
	eventually(t, "the call ends", func() bool { return b.channel.InFlight() == 0 })
}

func TestProxy_ErrorsNameWhatCannotBeCalled(t *testing.T) {
	w := newWorld(t)
	w.start("b", "web", app(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
	}), nil)
	a := w.start("a", "shop", "", nil)
	c := testv1.NewTestServiceClient(a.dial(t, nil))
	for _, tt := range []struct {
		ctx  context.Context
		code codes.Code
		text string
	}{
		{t.Context(), codes.Unimplemented, "dapr-app-id"},
		{to(t, "absent"), codes.Internal, "couldn't find service: absent"},
		{to(t, "a/b"), codes.InvalidArgument, "the app id"},
		{to(t, "web"), codes.Unimplemented, "does not speak gRPC"},
	} {
		_, err := c.UnaryCall(tt.ctx, &testv1.SimpleRequest{})
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v, want %s %s", err, tt.code, tt.text)
		}
	}
}

func TestProxy_AppliesAccessControl(t *testing.T) {
	o := &orders{seen: make(chan metadata.MD, 9)}
	w := newWorld(t)
	w.access = map[api.App]*invoke.Access{{ID: "orders"}: invoke.NewAccess(&component.AccessControl{
		DefaultAction: component.Deny, Policies: []component.AccessPolicy{
			{AppID: "shop", Namespace: "default", TrustDomain: "public", DefaultAction: component.Deny,
				Operations: []component.AccessOperation{{Name: "/grpc.testing.TestService/UnaryCall",
					Verbs: []string{"POST"}, Action: component.Allow}}},
		}}, false)}
	w.hooks = func(c *remoteinvoke.ServerConfig) {
		c.Prove = func(peer.Caller, api.App) (string, bool) { return "public", true }
	}
	w.start("b", "orders", o.start(t), func(o *appchannel.Options) { o.Protocol = appchannel.GRPC })
	conn := w.start("a", "shop", "", nil).dial(t, nil)
	c := testv1.NewTestServiceClient(conn)
	if _, err := c.UnaryCall(to(t, "orders"), &testv1.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := c.EmptyCall(to(t, "orders"), &testv1.Empty{}); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	// An HTTP server would cut the first two methods at ? and #, decode %45 in the third one, and resolve .. in the
	// last one.
	for method, want := range map[string]codes.Code{
		"/grpc.testing.TestService/EmptyCall?/UnaryCall":                  codes.InvalidArgument,
		"/grpc.testing.TestService/EmptyCall#/UnaryCall":                  codes.PermissionDenied,
		"/grpc.testing.TestService/%45mptyCall":                           codes.PermissionDenied,
		"/grpc.testing.TestService/../grpc.testing.TestService/EmptyCall": codes.PermissionDenied,
	} {
		if err := conn.Invoke(to(t, "orders"), method, &testv1.Empty{}, &testv1.Empty{}); status.Code(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// The client accepts gzip, but the application must not compress its answer, because the node cannot decompress it.
func TestProxy_TargetDoesNotCompressAnswers(t *testing.T) {
	a, b, _ := grpcPair(t)
	for _, from := range []*node{a, b} {
		answer, err := testv1.NewTestServiceClient(from.dial(t, nil)).UnaryCall(to(t, "orders"),
			&testv1.SimpleRequest{ResponseCompressed: &testv1.BoolValue{Value: true},
				Payload: &testv1.Payload{Body: []byte("text")}})
		if err != nil || string(answer.GetPayload().GetBody()) != "text" {
			t.Errorf("from %s: %v, %v", from.name, answer, err)
		}
	}
}

func TestProxy_LargeMessageIsRefusedWithLimit(t *testing.T) {
	a, _, _ := grpcPair(t)
	c := testv1.NewTestServiceClient(a.dial(t, func(c *apigrpc.Config) { c.MaxBodySize = 1000 }))
	for size, want := range map[int]codes.Code{900: codes.OK, 1100: codes.ResourceExhausted} {
		if _, err := c.UnaryCall(to(t, "orders"),
			&testv1.SimpleRequest{Payload: &testv1.Payload{Body: make([]byte, size)}}); status.Code(err) != want {
			t.Errorf("%d: %v", size, err)
		}
	}
}

func invokeService(app, method string, data *anypb.Any, kind string) *runtimev1.InvokeServiceRequest {
	return &runtimev1.InvokeServiceRequest{Id: app,
		Message: &commonv1.InvokeRequest{Method: method, Data: data, ContentType: kind,
			HttpExtension: &commonv1.HTTPExtension{Verb: commonv1.HTTPExtension_PUT, Querystring: "a=1"}}}
}

func TestGRPC_CallsMethodOfHTTPApp(t *testing.T) {
	w := newWorld(t)
	w.start("b", "web", app(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if r.Header.Get("Dapr-Api-Token") != "" {
			t.Error("the token of the API went to the application")
		}
		w.Header().Set("X-Query", r.Method+" "+r.RequestURI)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/made":
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = w.Write(append([]byte(r.Header.Get("X-Key")+" "), data...))
	}), nil)
	a := w.start("a", "shop", "", nil)
	c := runtimev1.NewDaprClient(a.dial(t, nil))
	var header metadata.MD
	out, err := c.InvokeService(metadata.AppendToOutgoingContext(t.Context(), "x-key", "v", "dapr-api-token",
		"secret"), invokeService("web", "made/a b", &anypb.Any{Value: []byte("data")}, "text/plain"),
		grpc.Header(&header))
	if err != nil || string(out.GetData().GetValue()) != "v data" || out.GetContentType() != "text/plain" ||
		header.Get("x-query")[0] != "PUT /made/a%20b?a=1" || header.Get("dapr-http-status")[0] != "200" {
		t.Errorf("%v, %v, %v", out, header, err)
	}
	_, err = c.InvokeService(t.Context(), invokeService("web", "missing", &anypb.Any{Value: []byte("no such order")},
		"text/plain"), grpc.Header(&header))
	st := status.Convert(err)
	if st.Code() != codes.NotFound || st.Message() != "Not Found" || len(st.Details()) != 1 ||
		header.Get("dapr-http-status")[0] != "404" {
		t.Fatalf("%v, %v, %v", err, st.Details(), header)
	}
	if info := st.Details()[0].(*errdetails.ErrorInfo); info.GetMetadata()["http.code"] != "404" ||
		info.GetMetadata()["http.error_message"] != " no such order" {
		t.Errorf("%v", info)
	}
	for _, in := range []*runtimev1.InvokeServiceRequest{{Id: "web"}, {Message: &commonv1.InvokeRequest{Method: "x"}},
		invokeService("web", "a/%2e%2e/b", nil, ""),
		{Id: "web", Message: &commonv1.InvokeRequest{Method: "x", HttpExtension: &commonv1.HTTPExtension{Verb: 99}}}} {
		if _, err := c.InvokeService(t.Context(), in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", in, err)
		}
	}
}

// methods is a gRPC application that answers with the method that it gets.
type methods struct {
	runtimev1.UnimplementedAppCallbackServer
}

func (methods) OnInvoke(_ context.Context, in *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	return &commonv1.InvokeResponse{Data: &anypb.Any{Value: []byte(in.GetMethod())}}, nil
}

func (methods) start(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, done := grpc.NewServer(), make(chan struct{})
	runtimev1.RegisterAppCallbackServer(s, methods{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

// A gRPC application gets the method of a gRPC call unchanged. Access rules and HTTP applications interpret escape
// sequences in the method like those of a path.
func TestGRPC_MethodsKeepEscapeSequences(t *testing.T) {
	w := newWorld(t)
	w.hooks = func(c *remoteinvoke.ServerConfig) {
		c.Prove = func(peer.Caller, api.App) (string, bool) { return "public", true }
	}
	rules := invoke.NewAccess(&component.AccessControl{DefaultAction: component.Deny,
		Policies: []component.AccessPolicy{{AppID: "shop", Namespace: "default", TrustDomain: "public",
			DefaultAction: component.Allow, Operations: []component.AccessOperation{{Name: "/admin/**",
				Verbs: []string{"*"}, Action: component.Deny}}}}}, false)
	w.access = map[api.App]*invoke.Access{{ID: "grpc"}: rules, {ID: "http"}: rules}
	b := w.start("b", "grpc", methods{}.start(t), func(o *appchannel.Options) { o.Protocol = appchannel.GRPC })
	w.start("d", "http", app(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RequestURI)
	}), nil)
	a := w.start("a", "shop", "", nil)
	for _, c := range []struct{ method, grpc, path string }{
		{"", "", "/"}, {"/", "", "/"}, {"x", "x", "/x"}, {"test%2Fstream", "test%2Fstream", "/test%2Fstream"},
		{"x/../a%2fb", "a%2fb", "/a%2fb"}, {"a%25b", "a%25b", "/a%25b"}, {"a%b", "a%b", "/a%25b"},
		{`a"b c|d`, `a"b c|d`, "/a%22b%20c%7Cd"}, {"ü%41", "ü%41", "/%C3%BC%41"},
	} {
		for _, from := range []*node{a, b} {
			got, err := runtimev1.NewDaprClient(from.dial(t, nil)).InvokeService(t.Context(),
				invokeService("grpc", c.method, nil, ""))
			if err != nil || string(got.GetData().GetValue()) != c.grpc {
				t.Errorf("%q from %s: the gRPC application got %q, want %q: %v", c.method, from.name,
					got.GetData().GetValue(), c.grpc, err)
			}
		}
		got, err := runtimev1.NewDaprClient(a.dial(t, nil)).InvokeService(t.Context(),
			invokeService("http", c.method, nil, ""))
		if err != nil || string(got.GetData().GetValue()) != c.path+"?a=1" {
			t.Errorf("%q: the HTTP application got %q, want %q: %v", c.method, got.GetData().GetValue(), c.path, err)
		}
	}
	for _, target := range []string{"grpc", "http"} {
		for method, want := range map[string]codes.Code{"admin/x": codes.PermissionDenied,
			"admin%2Fx": codes.PermissionDenied, "%61dmin%2fx": codes.PermissionDenied,
			"open%2F..%2Fadmin": codes.InvalidArgument, "a%00": codes.InvalidArgument} {
			_, err := runtimev1.NewDaprClient(a.dial(t, nil)).InvokeService(t.Context(),
				invokeService(target, method, nil, ""))
			if status.Code(err) != want {
				t.Errorf("%s of %s: %v, want %s", method, target, err, want)
			}
		}
	}
	answer, err := client(t).Get(a.url("/v1.0/invoke/grpc/method/a%2Fb"))
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, answer); got != "a/b" { // as in Dapr, which decodes paths of HTTP
		t.Errorf("over HTTP, the gRPC application got %q", got)
	}
}

func TestGRPC_KeepsMessageTypes(t *testing.T) {
	a, b, _ := grpcPair(t)
	for _, from := range []*node{a, b} {
		c := runtimev1.NewDaprClient(from.dial(t, nil))
		data, err := anypb.New(&testv1.SimpleRequest{FillUsername: true})
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.InvokeService(t.Context(), invokeService("orders", "echo", data, ""))
		if err != nil || out.GetData().GetTypeUrl() != data.GetTypeUrl() ||
			string(out.GetData().GetValue()) != string(data.GetValue()) || out.GetContentType() != "" {
			t.Errorf("%v, %v", out, err)
		}
		out, err = c.InvokeService(t.Context(),
			invokeService("orders", "echo", &anypb.Any{Value: []byte("1")}, "application/json"))
		if err != nil || out.GetData().GetTypeUrl() != "" || out.GetContentType() != "application/json" {
			t.Errorf("%v, %v", out, err)
		}
		out, err = c.InvokeService(t.Context(), invokeService("orders", "echo", data, "application/json"))
		if err != nil || out.GetData().GetTypeUrl() != data.GetTypeUrl() ||
			out.GetContentType() != "application/json" {
			t.Errorf("a message with a type and a content type: %v, %v", out, err)
		}
		_, err = c.InvokeService(t.Context(), invokeService("orders", "fail", nil, ""))
		if st := status.Convert(err); st.Code() != codes.NotFound || st.Message() != "no such order" ||
			len(st.Details()) != 1 {
			t.Errorf("%v %v", err, st.Details())
		}
	}
}
