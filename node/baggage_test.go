package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/headers"
	"github.com/quorate/quorate/node"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// traceApp is a gRPC application that answers with the trace it has received, and with baggage of its own.
type traceApp struct {
	runtimev1.UnimplementedAppCallbackServer
}

func (traceApp) OnInvoke(ctx context.Context, _ *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if err := grpc.SetHeader(ctx, metadata.Pairs("baggage", "answer=1")); err != nil {
		return nil, err
	}
	binary := ""
	if v := md.Get("grpc-trace-bin"); len(v) > 0 {
		binary = headers.TraceParent([]byte(v[0]))
	}
	text := strings.Join(md.Get("traceparent"), ",")
	return &commonv1.InvokeResponse{ContentType: "text/plain", Data: &anypb.Any{
		Value: []byte(fmt.Sprint(text, " ", text == binary, " ", strings.Join(md.Get("baggage"), ",")))}}, nil
}

func tracedNode(t *testing.T) (*node.Node, runtimev1.DaprClient) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := grpc.NewServer()
	runtimev1.RegisterAppCallbackServer(app, traceApp{})
	go func() { _ = app.Serve(l) }()
	t.Cleanup(app.Stop)
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header.Get("Traceparent"), " ", r.Header.Get("Baggage"))
	}))
	t.Cleanup(partner.Close)
	n, _, _ := running(t, map[string]string{"p.yaml": document("Component", "partner",
		"  type: bindings.http\n  version: v1\n  metadata: [{name: url, value: "+partner.URL+"}]\n")},
		func(c *node.Config) {
			c.App.Port, c.App.Protocol = l.Addr().(*net.TCPAddr).Port, node.ProtocolGRPC
		})
	conn, err := grpc.NewClient(n.Addresses().GRPC[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return n, runtimev1.NewDaprClient(conn)
}

// The node exports no spans, so it passes on the span of the caller.
func TestTrace_ReachesGRPCApplicationsInBothForms(t *testing.T) {
	n, client := tracedNode(t)
	id := n.Addresses().Apps[0].ID
	r := requestWith(t, n, "GET", "/v1.0/invoke/"+id+"/method/m", "", "Traceparent", parent, "Baggage", "a=1",
		"Baggage", "b=2")
	if r.status != 200 || r.body != parent+" true a=1,b=2" || r.header.Get("Baggage") != "answer=1" {
		t.Errorf("HTTP: %+v", r)
	}
	for name, md := range map[string]metadata.MD{
		"text":   metadata.Pairs("traceparent", parent, "baggage", "a=1"),
		"binary": metadata.Pairs("grpc-trace-bin", string(headers.TraceBinary(parent)), "baggage", "a=1"),
	} {
		var header metadata.MD
		out, err := client.InvokeService(metadata.NewOutgoingContext(t.Context(), md), &runtimev1.InvokeServiceRequest{
			Id: id, Message: &commonv1.InvokeRequest{Method: "m"}}, grpc.Header(&header))
		body := string(out.GetData().GetValue())
		if err != nil || body != parent+" true a=1" ||
			strings.Join(header.Get("baggage"), ",") != "answer=1" {
			t.Errorf("%s: %s %v %v", name, body, header, err)
		}
	}
}

func TestTrace_ReachesHTTPBindings(t *testing.T) {
	n, client := tracedNode(t)
	const body = `{"operation":"get"}`
	r := requestWith(t, n, "POST", "/v1.0/bindings/partner", body, "Traceparent", parent, "Baggage", "a=1", "Baggage",
		"b=2")
	if r.status != 200 || r.body != parent+" a=1,b=2" {
		t.Errorf("HTTP: %+v", r)
	}
	r = requestWith(t, n, "POST", "/v1.0/bindings/partner", body)
	if r.status != 200 || !strings.HasPrefix(r.body, "00-") || strings.Contains(r.body, traceID) {
		t.Errorf("a request without a trace: %+v", r)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "grpc-trace-bin", string(headers.TraceBinary(parent)),
		"baggage", "a=1")
	out, err := client.InvokeBinding(ctx, &runtimev1.InvokeBindingRequest{Name: "partner", Operation: "get"})
	if err != nil || string(out.GetData()) != parent+" a=1" {
		t.Errorf("gRPC: %s %v", out.GetData(), err)
	}
}

func TestBaggage_InvalidIsRefused(t *testing.T) {
	n, client := tracedNode(t)
	id := n.Addresses().Apps[0].ID
	for path, body := range map[string]string{"/v1.0/invoke/" + id + "/method/m": "",
		"/v1.0/bindings/partner": `{"operation":"get"}`} {
		r := requestWith(t, n, "POST", path, body, "Baggage", "no value")
		if r.status != 400 || !strings.Contains(r.body, "invalid baggage header") {
			t.Errorf("%s: %+v", path, r)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "baggage", "no value")
	_, err := client.InvokeService(ctx, &runtimev1.InvokeServiceRequest{Id: id,
		Message: &commonv1.InvokeRequest{Method: "m"}})
	_, err2 := client.InvokeBinding(ctx, &runtimev1.InvokeBindingRequest{Name: "partner", Operation: "get"})
	for _, err := range []error{err, err2} {
		if grpcstatus.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "invalid baggage header") {
			t.Errorf("%v", err)
		}
	}
}

type answered struct {
	status int
	body   string
	header http.Header
}

// requestWith sends a request with header fields, given as names and values.
func requestWith(t *testing.T, n *node.Node, method, path, body string, fields ...string) answered {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.Addresses().API[0]+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{response.StatusCode, string(text), response.Header}
}
