package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	callback "github.com/dapr/go-sdk/service/grpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// sdkPatience limits each wait of the tests with the public SDK.
const sdkPatience = 2 * time.Minute

// sdkApp is an application that uses the public SDK. Each node has one instance.
type sdkApp struct {
	port   string
	events atomic.Int64 // from the binding
	calls  atomic.Int64
}

func newSDKApp(t *testing.T) *sdkApp {
	t.Helper()
	l := sure(net.Listen("tcp", "127.0.0.1:0"))(t)
	a := &sdkApp{port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
	s := callback.NewServiceWithListener(l)
	if err := s.AddServiceInvocationHandler("echo",
		func(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
			a.calls.Add(1)
			return &common.Content{Data: append([]byte(in.Verb+" "), in.Data...), ContentType: in.ContentType}, nil
		}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddBindingInvocationHandler("tick", func(context.Context, *common.BindingEvent) ([]byte, error) {
		a.events.Add(1)
		return nil, nil
	}); err != nil {
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
	return a
}

// grpcOf returns the gRPC address of a server, from its metadata.
func grpcOf(t *testing.T, v *victim) string {
	t.Helper()
	_, text, err := v.ask("GET", "/v1.0/metadata", "", "dapr-api-token", attackToken)
	if err != nil {
		t.Fatal(err)
	}
	var described struct{ API struct{ GRPC []string } }
	if err := json.Unmarshal([]byte(text), &described); err != nil || len(described.API.GRPC) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	return described.API.GRPC[0]
}

// sdkClient returns a client of the public SDK, opened as applications do.
func sdkClient(t *testing.T, address, token string) sdk.Client {
	t.Helper()
	t.Setenv("DAPR_CLIENT_TIMEOUT_SECONDS", "60") // how long the SDK waits for the connection
	c := sure(sdk.NewClientWithAddress(address))(t)
	t.Cleanup(c.Close)
	c.WithAuthToken(token)
	return c
}

// wanderer returns an SDK client that connects to the first address that answers.
func wanderer(t *testing.T, addresses ...string) sdk.Client {
	t.Helper()
	nodes := manual.NewBuilderWithScheme("nodes")
	var state resolver.State
	for _, a := range addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	nodes.InitialState(state)
	return sdk.NewClientWithConnection(connect(t, "nodes:///", grpc.WithResolvers(nodes), grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn, call grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			return call(metadata.AppendToOutgoingContext(ctx, "dapr-api-token", attackToken), method, in, out, cc,
				opts...)
		})))
}

func connect(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn := sure(grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register describes a key to which one writer saves growing numbers. It has the last acknowledged and the last sent
// one.
type register struct{ acknowledged, asked int }

// pen is a writer, which writes its own registers with one client.
type pen struct {
	id     int
	client sdk.Client
	keys   [20]register // used only by the writing goroutine, until this goroutine has ended
	acks   atomic.Int64
	failed atomic.Int64
}

func (p *pen) key(k int) string { return fmt.Sprintf("w%d-%d", p.id, k) }

func (p *pen) write(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		k := &p.keys[i%len(p.keys)]
		k.asked++
		if p.save(ctx, i%len(p.keys), k.asked) == nil {
			k.acknowledged = k.asked
			p.acks.Add(1)
		} else {
			p.failed.Add(1)
		}
	}
}

func (p *pen) save(ctx context.Context, k, value int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.client.SaveState(ctx, "statestore", p.key(k), []byte(strconv.Itoa(value)), nil,
		sdk.WithConsistency(sdk.StateConsistencyStrong))
}

// check reads every register of a writer through the client with. No acknowledged number may be lost.
func (p *pen) check(t *testing.T, with sdk.Client, where string) {
	t.Helper()
	for k, r := range p.keys {
		ctx, cancel := context.WithTimeout(t.Context(), sdkPatience)
		item, err := with.GetStateWithConsistency(ctx, "statestore", p.key(k), nil, sdk.StateConsistencyStrong)
		cancel()
		if err != nil {
			t.Fatalf("%s at %s: %v", p.key(k), where, err)
		}
		have, _ := strconv.Atoi(string(item.Value)) // 0 if there is none
		if have < r.acknowledged || have > r.asked {
			t.Errorf("%s at %s has %d; %d was acknowledged, %d was sent", p.key(k), where, have, r.acknowledged,
				r.asked)
		}
	}
}

// leader waits until one of the servers in among leads three voters, and returns its index.
func (s *siege) leader(t *testing.T, among []*victim) int {
	t.Helper()
	at := -1
	s.eventually(t, "one of the servers leads", sdkPatience, func() bool {
		at = slices.IndexFunc(among, func(v *victim) bool {
			status, err := v.Status(t.Context())
			return err == nil && len(status.Groups) > 0 && status.Groups[0].State == "leader" &&
				launcher.Voters(status.Groups[0]) == 3
		})
		return at >= 0
	})
	return at
}

// TestSDK_SurvivesLeaderFailure runs three real processes, each with an application that uses the public SDK. One SDK
// client is connected to each node that stays up. Another one is connected to the leader and knows the other
// addresses. The test kills the leader while the clients write and call.
func TestSDK_SurvivesLeaderFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters of processes")
	}
	s := newCamp(t)
	s.write(t, "resources/tick.yaml", `apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: tick
spec:
  type: bindings.cron
  version: v1
  metadata:
  - name: schedule
    value: "@every 1s"
`)
	var apps []*sdkApp
	flags := func(i int) []string {
		return []string{
			"--bootstrap-expect", "3", "--cluster-token-file", filepath.Join(s.dir, "token"), "--enable-grpc=true",
			"--app-id", "orders", "--app-port", apps[i].port, "--app-protocol", "grpc",
		}
	}
	healthy := func(v *victim) func() bool {
		return func() bool { return v.status("GET", "/v1.0/healthz") == http.StatusNoContent }
	}
	for i, v := range s.nodes {
		apps = append(apps, newSDKApp(t))
		s.start(t, v, flags(i)...)
	}
	for _, v := range s.nodes {
		s.eventually(t, v.ID+" becomes ready", sdkPatience, healthy(v))
	}
	at := s.leader(t, s.nodes)
	rest := []*victim{s.nodes[(at+1)%3], s.nodes[(at+2)%3]}
	stay := []string{grpcOf(t, rest[0]), grpcOf(t, rest[1])}
	guarded(t, rest[0], stay[0])

	var pens []*pen
	for i, c := range []sdk.Client{sdkClient(t, stay[0], attackToken), sdkClient(t, stay[1], attackToken),
		wanderer(t, grpcOf(t, s.nodes[at]), stay[0], stay[1])} {
		pens = append(pens, &pen{id: i, client: c})
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, p := range pens {
		all.Go(func() { p.write(ctx) })
	}
	callers := make([]atomic.Int64, 2)
	for i, p := range pens[:2] {
		all.Go(func() {
			for ctx.Err() == nil {
				once, cancel := context.WithTimeout(ctx, 10*time.Second)
				out, err := p.client.InvokeMethodWithContent(once, "orders", "echo", "post",
					&sdk.DataContent{Data: []byte("hello"), ContentType: "text/plain"})
				cancel()
				if err == nil && string(out) != "POST hello" {
					t.Errorf("the call is answered with %q", out)
				}
				if err == nil {
					callers[i].Add(1)
				}
			}
		})
	}
	more := func(when string) {
		t.Helper()
		for i, p := range pens {
			from := p.acks.Load()
			s.eventually(t, fmt.Sprintf("client %d writes %s", i, when), sdkPatience,
				func() bool { return p.acks.Load() >= from+30 })
		}
		for i := range callers {
			from := callers[i].Load()
			s.eventually(t, fmt.Sprintf("client %d calls %s", i, when), sdkPatience,
				func() bool { return callers[i].Load() >= from+30 })
		}
		events := func() (n int64) {
			for _, v := range rest {
				n += apps[slices.Index(s.nodes, v)].events.Load()
			}
			return n
		}
		if when == "before" { // before the kill, any node may deliver the events
			events = func() int64 { return apps[0].events.Load() + apps[1].events.Load() + apps[2].events.Load() }
		}
		from := events()
		s.eventually(t, "events come "+when, sdkPatience, func() bool { return events() >= from+2 })
	}
	more("before")
	s.nodes[at].Kill()
	s.leader(t, rest)
	more("after the leader was killed")
	stop()
	all.Wait()
	for i, p := range pens {
		t.Logf("client %d: %d writes acknowledged, %d failed", i, p.acks.Load(), p.failed.Load())
		for j, v := range rest {
			p.check(t, pens[j].client, v.ID)
		}
		p.check(t, pens[2].client, "wherever the third client went")
	}
	s.start(t, s.nodes[at], flags(at)...)
	s.eventually(t, "the killed one comes back", sdkPatience, healthy(s.nodes[at]))
	back := sdkClient(t, grpcOf(t, s.nodes[at]), attackToken)
	for _, p := range pens {
		p.check(t, back, s.nodes[at].ID)
	}
	for i, a := range apps {
		t.Logf("application %d: %d events, %d calls", i, a.events.Load(), a.calls.Load())
	}
}

// guarded tests the API token, the health service and reflection of a server.
func guarded(t *testing.T, v *victim, address string) {
	t.Helper()
	conn := connect(t, address)
	for _, token := range []string{"", "a-wrong-token"} {
		_, err := sdkClient(t, address, token).GetState(t.Context(), "statestore", "k", nil)
		if err == nil || !strings.Contains(err.Error(), codes.Unauthenticated.String()) {
			t.Errorf("with the token %q: %v", token, err)
		}
	}
	if log := v.log.String(); !strings.Contains(log, "audit: a request was turned away") ||
		strings.Contains(log, "a-wrong-token") || strings.Contains(log, attackToken) {
		t.Errorf("no audit line, or a token in the log:\n%s", log)
	}
	health, err := healthv1.NewHealthClient(conn).Check(t.Context(),
		&healthv1.HealthCheckRequest{Service: "dapr.proto.runtime.v1.Dapr"})
	if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	list := func(ctx context.Context) (names []string, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			return nil, err
		}
		// Recv returns the error
		_ = stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		answer, err := stream.Recv()
		for _, service := range answer.GetListServicesResponse().GetService() {
			names = append(names, service.GetName())
		}
		return names, err
	}
	if _, err := list(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection without a token: %v", err)
	}
	names, err := list(metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", attackToken))
	if err != nil || !slices.Contains(names, "dapr.proto.runtime.v1.Dapr") ||
		!slices.Contains(names, "grpc.health.v1.Health") {
		t.Errorf("reflection lists %v, %v", names, err)
	}
}
