package grpc_test

import (
	"context"
	"net"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/api/apitest"
	apigrpc "github.com/quorate/quorate/api/grpc"
	"github.com/quorate/quorate/internal/admission"
)

// fixture is a Server over an apitest.World. A test that changes the world after newFixture must call refit, unless
// the test changes only the catalogues.
type fixture struct {
	*apitest.World
	config apigrpc.Config
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{World: apitest.New(t)}
	f.refit()
	return f
}

// refit updates the configuration of the server from the world.
func (f *fixture) refit() {
	s := f.Services()
	f.config = apigrpc.Config{
		App: f.App, State: s.State, Secrets: s.Secrets, Bindings: s.Bindings, Locks: s.Locks, Jobs: s.Jobs,
		Configurations: s.Configurations, Topics: s.Topics, Workflows: s.Workflows, Health: s.Health,
		Metadata: s.Metadata, Actors: s.Actors,
		Shutdown: s.Shutdown,
		Tokens:   f.Tokens, MaxBodySize: f.MaxBodySize, RequestTimeout: f.RequestTimeout, Logger: s.Logger,
		Registerer: f.Metrics,
		Requests:   admission.New(admission.Options{Name: "requests"}),
		Answers:    admission.New(admission.Options{Name: "answers"}),
	}
}

// serve opens a listener on loopback and returns a connection to it.
func (f *fixture) serve(t testing.TB, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	server, err := apigrpc.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Serve(l)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Errorf("closing the server: %v", err)
		}
	})
	return dial(t, l.Addr().String(), options...)
}

func dial(t testing.TB, addr string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fixture) client(t testing.TB) runtimev1.DaprClient {
	t.Helper()
	return runtimev1.NewDaprClient(f.serve(t))
}
