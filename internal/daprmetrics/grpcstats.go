package daprmetrics

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// healthMethod is the full name of the method that probes the health of a gRPC application.
const healthMethod = "/dapr.proto.runtime.v1.AppCallbackHealthCheck/HealthCheck"

// GRPCServer returns the handler that records the calls of the gRPC API.
func (a *App) GRPCServer() stats.Handler { return &grpcStats{app: a} }

// GRPCClient returns the handler that records the gRPC calls to the application.
func (a *App) GRPCClient() stats.Handler { return &grpcStats{app: a, client: true} }

// grpcStats implements stats.Handler.
type grpcStats struct {
	app    *App
	client bool
}

// call is one call in progress.
type call struct {
	method         string
	received, sent atomic.Int64 // bytes of messages
}

type callKey struct{}

// TagRPC implements stats.Handler.
func (g *grpcStats) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, callKey{}, &call{method: i.FullMethodName})
}

// HandleRPC implements stats.Handler.
func (g *grpcStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.InPayload:
		c.received.Add(int64(s.Length))
	case *stats.OutPayload:
		c.sent.Add(int64(s.Length))
	case *stats.End:
		if s.Error != nil && !g.client {
			g.app.failedCall(c.method, s.Error)
		}
		g.ended(c, status.Code(s.Error).String(), s.EndTime.Sub(s.BeginTime))
	}
}

func (g *grpcStats) ended(c *call, code string, took time.Duration) {
	m, id := g.app.metrics, g.app.id
	if g.client && c.method == healthMethod {
		m.inc("dapr_grpc_io_healthprobes_completed_count", id, code)
		m.latency("dapr_grpc_io_healthprobes_roundtrip_latency", took, id, code)
		return
	}
	method := m.methods.label(c.method)
	if g.client {
		m.inc("dapr_grpc_io_client_completed_rpcs", id, method, code)
		m.latency("dapr_grpc_io_client_roundtrip_latency", took, id, method, code)
		m.size("dapr_grpc_io_client_sent_bytes_per_rpc", c.sent.Load(), id, method)
		m.size("dapr_grpc_io_client_received_bytes_per_rpc", c.received.Load(), id, method)
		return
	}
	m.inc("dapr_grpc_io_server_completed_rpcs", id, method, code)
	m.latency("dapr_grpc_io_server_server_latency", took, id, method, code)
	m.size("dapr_grpc_io_server_received_bytes_per_rpc", c.received.Load(), id, method)
	m.size("dapr_grpc_io_server_sent_bytes_per_rpc", c.sent.Load(), id, method)
}

// TagConn implements stats.Handler.
func (*grpcStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*grpcStats) HandleConn(context.Context, stats.ConnStats) {}
