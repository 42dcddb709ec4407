package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	sdk "github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	callback "github.com/dapr/go-sdk/service/grpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// dialSDK connects the public SDK to a node.
func dialSDK(t testing.TB, n *node.Node) sdk.Client {
	t.Helper()
	c, err := sdk.NewClientWithAddress(n.Addresses().GRPC[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// grpcApp starts an application of the public SDK, and returns its port. serve adds its handlers.
func grpcApp(t testing.TB, serve func(s common.Service) error, options ...grpc.ServerOption) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	s := callback.NewServiceWithListener(l, options...)
	if err := serve(s); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Start()
	}()
	t.Cleanup(func() {
		_ = s.Stop()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

func wantStatus(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if rpcstatus.Code(err) != want && rpcstatus.Code(errors.Unwrap(err)) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestGRPC_PublicSDKWithOneNode(t *testing.T) {
	dir := t.TempDir()
	events := make(chan string, 100)
	port := grpcApp(t, func(s common.Service) error {
		return errors.Join(
			s.AddServiceInvocationHandler("echo",
				func(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
					return &common.Content{Data: append([]byte(in.Verb+" "), in.Data...),
						ContentType: in.ContentType}, nil
				}),
			s.AddBindingInvocationHandler("tick", func(_ context.Context, in *common.BindingEvent) ([]byte, error) {
				select {
				case events <- string(in.Data):
				default:
				}
				return nil, nil
			}))
	})
	c := config(t)
	c.App.Port, c.App.Protocol = port, node.ProtocolGRPC
	files := secretFiles(t, dir)
	c.Components.Paths = resources(t, map[string]string{"vault.yaml": files["vault.yaml"],
		"s.yaml":    store("statestore", "state.raft", ""),
		"tick.yaml": store("tick", "bindings.cron", `{name: schedule, value: "@every 1s"}`)})
	n := open(t, c)
	ready(t, n)
	client, ctx := dialSDK(t, n), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.SaveState(ctx, "statestore", "k", []byte(`{"n":1}`), nil))
	item, err := client.GetState(ctx, "statestore", "k", nil)
	must(err)
	if string(item.Value) != `{"n":1}` || item.Etag == "" {
		t.Errorf("%+v", item)
	}
	must(client.SaveStateWithETag(ctx, "statestore", "k", []byte("2"), item.Etag, nil))
	wantStatus(t, client.SaveStateWithETag(ctx, "statestore", "k", []byte("3"), item.Etag, nil), codes.Aborted)
	must(client.ExecuteStateTransaction(ctx, "statestore", nil, []*sdk.StateOperation{
		{Type: sdk.StateOperationTypeUpsert, Item: &sdk.SetStateItem{Key: "a", Value: []byte("1")}},
		{Type: sdk.StateOperationTypeDelete, Item: &sdk.SetStateItem{Key: "k"}},
	}))
	items, err := client.GetBulkState(ctx, "statestore", []string{"a", "k"}, nil, 2)
	must(err)
	if len(items) != 2 || string(items[0].Value) != "1" || len(items[1].Value) != 0 {
		t.Errorf("%+v", items)
	}
	if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/a", ""); code != http.StatusOK || body != "1" {
		t.Errorf("what gRPC saved reads over HTTP as %d %s", code, body)
	}
	secret, err := client.GetSecret(ctx, "vault", "redis:password", nil)
	must(err)
	if secret["redis:password"] != "hunter2-password" {
		t.Error("the secret is not what the file says")
	}
	if _, err := client.GetBulkSecret(ctx, "vault", nil); err != nil {
		t.Error(err)
	}
	_, err = client.GetSecret(ctx, "none", "x", nil)
	wantStatus(t, err, codes.InvalidArgument)
	poll(t, func() error {
		out, err := client.InvokeMethodWithContent(ctx, "shop", "echo", "post",
			&sdk.DataContent{Data: []byte("hello"), ContentType: "text/plain"})
		if err == nil && string(out) != "POST hello" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	select {
	case <-events:
	case <-time.After(patience):
		t.Error("no event of the binding came")
	}
	err = client.InvokeOutputBinding(ctx, &sdk.InvokeBindingRequest{Name: "none", Operation: "create"})
	if err == nil || !strings.Contains(err.Error(), "couldn't find output binding none") {
		t.Error(err)
	}
	must(client.SetMetadata(ctx, "color", "blue"))
	info, err := client.GetMetadata(ctx)
	must(err)
	if info.ID != "shop" || info.ExtendedMetadata["color"] != "blue" {
		t.Errorf("%+v", info)
	}
	var described struct {
		Extended map[string]string
		API      struct{ HTTP, GRPC []string }
	}
	_, body, _ := ask(t, n, "GET", "/v1.0/metadata", "")
	must(json.Unmarshal([]byte(body), &described))
	if described.Extended["color"] != "blue" || !slices.Equal(described.API.GRPC, n.Addresses().GRPC) ||
		!slices.Equal(grpcOf(t, n), n.Addresses().GRPC) {
		t.Errorf("%s", body)
	}
}

// grpcOf returns the addresses of the gRPC API of the first application, from the status.
func grpcOf(t testing.TB, n *node.Node) []string { return status(t, n).Node.Apps[0].GRPC }

func TestGRPC_PublicSDKDuringLeaderChange(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, _ := three(t)
	at := leads(t, nodes)
	rest := append(slices.Clone(nodes[:at]), nodes[at+1:]...)
	clients := []sdk.Client{dialSDK(t, rest[0]), dialSDK(t, rest[1])}
	strong := sdk.WithConsistency(sdk.StateConsistencyStrong)
	var mu sync.Mutex
	acked := map[string]string{}
	stop, failures := make(chan struct{}), 0
	var all sync.WaitGroup
	for w, c := range clients {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key, value := fmt.Sprintf("w%d-%d", w, i%50), fmt.Sprintf("%d", i)
				err := c.SaveState(t.Context(), "statestore", key, []byte(value), nil, strong)
				mu.Lock()
				if err == nil {
					acked[key] = value
				} else {
					failures++
					delete(acked, key) // the write may have been applied
				}
				mu.Unlock()
			}
		})
	}
	enough := func(n int) {
		poll(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(acked) < n {
				return fmt.Errorf("%d keys", len(acked))
			}
			return nil
		})
	}
	enough(20)
	closeNode(t, nodes[at])
	leads(t, rest)
	mu.Lock()
	clear(acked)
	mu.Unlock()
	enough(80)
	close(stop)
	all.Wait()
	for key, value := range acked {
		for i, c := range clients {
			item, err := c.GetStateWithConsistency(t.Context(), "statestore", key, nil, sdk.StateConsistencyStrong)
			if err != nil || string(item.Value) != value {
				t.Fatalf("%s at %d: %+v, %v, want %s", key, i, item, err, value)
			}
		}
	}
	t.Logf("%d keys, %d failed writes", len(acked), failures)
}

// The node calls an application that speaks gRPC, and delivers events to it, with and without TLS. Clients can also
// call the services of the application through the node.
func TestGRPC_ApplicationOverTLS(t *testing.T) {
	t.Parallel()
	for _, protocol := range []node.Protocol{node.ProtocolGRPC, node.ProtocolGRPCS} {
		t.Run(string(protocol), func(t *testing.T) {
			events := make(chan struct{}, 100)
			var options []grpc.ServerOption
			if protocol == node.ProtocolGRPCS {
				web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
				options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
				web.Close()
			}
			c := config(t)
			c.App.Protocol = protocol
			c.App.Port = grpcApp(t, func(s common.Service) error {
				return errors.Join(
					s.AddServiceInvocationHandler("echo",
						func(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
							return &common.Content{Data: append([]byte(in.Verb+" "), in.Data...),
								ContentType: in.ContentType}, nil
						}),
					s.AddBindingInvocationHandler("tick",
						func(context.Context, *common.BindingEvent) ([]byte, error) {
							select {
							case events <- struct{}{}:
							default:
							}
							return nil, nil
						}))
			}, options...)
			c.Components.Paths = resources(t, map[string]string{"tick.yaml": store("tick", "bindings.cron",
				`{name: schedule, value: "@every 1s"}`)})
			n := open(t, c)
			ready(t, n)
			poll(t, func() error {
				out, err := dialSDK(t, n).InvokeMethodWithContent(t.Context(), "shop", "echo", "post",
					&sdk.DataContent{Data: []byte("hello"), ContentType: "text/plain"})
				if err == nil && string(out) != "POST hello" {
					err = fmt.Errorf("%q", out)
				}
				return err
			})
			if code, body, _ := ask(t, n, "PUT", "/v1.0/invoke/shop/method/echo", "hi"); code != http.StatusOK ||
				body != "PUT hi" {
				t.Errorf("over HTTP: %d %s", code, body)
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), "dapr-app-id", "shop")
			list, err := runtimev1.NewAppCallbackClient(connect(t, n.Addresses().GRPC[0])).ListInputBindings(ctx,
				&emptypb.Empty{})
			if err != nil || !slices.Equal(list.GetBindings(), []string{"tick"}) {
				t.Errorf("a service of the application: %v, %v", list, err)
			}
			select {
			case <-events:
			case <-time.After(time.Minute):
				t.Error("no event of the binding came")
			}
		})
	}
}

func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A node without gRPC has no gRPC listener, server, goroutine or metric.
func TestGRPC_DisabledAPIStartsNothing(t *testing.T) {
	traces := func(off bool) (found []string) {
		t.Helper()
		c := config(t)
		c.API.GRPCOff = off
		n := open(t, c)
		defer closeNode(t, n)
		ready(t, n)
		if got := n.Addresses().GRPC; (len(got) == 0) != off {
			t.Errorf("listeners: %v", got)
		}
		resp, err := http.Get("http://" + n.Addresses().Metrics + "/metrics") //nolint:noctx // a loopback listener
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(page), "quorate_grpc_") {
			found = append(found, "metrics")
		}
		stacks := make([]byte, 16<<20)
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "google.golang.org/grpc.(*Server)") && !slices.Contains(found, "goroutines") {
				found = append(found, "goroutines")
			}
		}
		return found
	}
	if got := traces(false); !slices.Equal(got, []string{"metrics", "goroutines"}) {
		t.Errorf("a node with it has %v: the test sees nothing", got)
	}
	if got := traces(true); len(got) > 0 {
		t.Errorf("a node without it has its %v", got)
	}
}

func TestGRPC_DisabledOrOnAnotherPort(t *testing.T) {
	c := config(t)
	c.API.GRPCOff = true
	if n := open(t, c); len(n.Addresses().GRPC) != 0 {
		t.Errorf("%v", n.Addresses().GRPC)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := node.Port{Number: l.Addr().(*net.TCPAddr).Port} // as if it were the default one
	c = config(t)
	c.API.GRPC = taken
	_, err = node.Open(t.Context(), c, deps(t))
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Text(err), "--grpc-port") ||
		!strings.Contains(fault.Text(err), "--enable-grpc=false") {
		t.Errorf("%v", err)
	}
	c = config(t)
	c.API.GRPC, c.App.Command = taken, []string{"true"}
	if n := open(t, c); n.Addresses().GRPC[0] == l.Addr().String() {
		t.Errorf("%v", n.Addresses().GRPC)
	}
}

func TestGRPC_EachApplicationHasOwnAPIAndToken(t *testing.T) {
	c := config(t)
	c.Apps = []node.AppEntry{{App: node.App{ID: "pay"}, HTTPPort: free(), GRPCPort: free(), Token: "hush"},
		{App: node.App{ID: "ship"}, HTTPPort: free()}}
	n := open(t, c)
	ready(t, n)
	apps := n.Addresses().Apps
	if len(apps[1].GRPC) != 1 || len(apps[2].GRPC) != 0 {
		t.Fatalf("%+v", apps)
	}
	pay := sdk.NewClientWithConnection(connect(t, apps[1].GRPC[0]))
	wantStatus(t, pay.SaveState(t.Context(), "statestore", "k", []byte("1"), nil), codes.Unauthenticated)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", "hush")
	if err := pay.SaveState(ctx, "statestore", "k", []byte("1"), nil); err != nil {
		t.Fatal(err)
	}
	item, err := dialSDK(t, n).GetState(t.Context(), "statestore", "k", nil)
	if err != nil || len(item.Value) != 0 {
		t.Errorf("another application sees the key: %+v, %v", item, err)
	}
}
