package remoteinvoke_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	testv1 "google.golang.org/grpc/interop/grpc_testing"

	"github.com/quorate/quorate/internal/appchannel"
)

// gathering is an application whose calls wait until wanted calls are in progress at the same time.
type gathering struct {
	testv1.UnimplementedTestServiceServer
	runtimev1.UnimplementedAppCallbackServer
	wanted int
	all    chan struct{} // closed when wanted calls are in progress

	mu sync.Mutex
	in int
}

func (g *gathering) arrive(ctx context.Context) error {
	g.mu.Lock()
	if g.in++; g.in == g.wanted {
		close(g.all)
	}
	g.mu.Unlock()
	select {
	case <-g.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gathering) OnInvoke(ctx context.Context, _ *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	return &commonv1.InvokeResponse{}, g.arrive(ctx)
}

func (g *gathering) UnaryCall(ctx context.Context, _ *testv1.SimpleRequest) (*testv1.SimpleResponse, error) {
	return &testv1.SimpleResponse{}, g.arrive(ctx)
}

func TestGRPC_MoreCallsThanTheApplicationAllowsOnOneConnection(t *testing.T) {
	const limit, calls = 100, 200
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"InvokeService": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := runtimev1.NewDaprClient(c).InvokeService(ctx, invokeService("orders", "wait", nil, ""))
			return err
		},
		"a service of its own": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := testv1.NewTestServiceClient(c).UnaryCall(ctx, &testv1.SimpleRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &gathering{wanted: calls, all: make(chan struct{})}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := grpc.NewServer(grpc.MaxConcurrentStreams(limit))
			testv1.RegisterTestServiceServer(s, g)
			runtimev1.RegisterAppCallbackServer(s, g)
			var served sync.WaitGroup
			served.Go(func() { _ = s.Serve(l) })
			t.Cleanup(func() {
				s.Stop()
				served.Wait()
			})
			b := newWorld(t).start("b", "orders", l.Addr().String(), func(o *appchannel.Options) {
				o.Protocol = appchannel.GRPC
			})
			conn := b.dial(t, nil)
			ctx, cancel := context.WithTimeout(to(t, "orders"), 30*time.Second)
			defer cancel()
			errs := make(chan error, calls)
			for range calls {
				go func() { errs <- call(ctx, conn) }()
			}
			var all error
			for range calls {
				all = errors.Join(all, <-errs)
			}
			if all != nil {
				t.Error(all)
			}
		})
	}
}
