package appchannel

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// callsPerConn is the maximum number of concurrent calls on one connection. Many servers do not permit more
	// streams on a connection, so further calls would have to wait.
	callsPerConn = 100
	// spareIdle is the time after which an additional connection without calls is closed.
	spareIdle = time.Minute
)

// grpcPool is a set of connections to the application. Clients use it like a single gRPC connection. The pool opens
// another connection when each existing one has callsPerConn calls in progress. A grpcPool implements
// grpc.ClientConnInterface and is safe for concurrent use.
type grpcPool struct {
	dial func(idle time.Duration) (*grpc.ClientConn, error)

	mu    sync.Mutex
	conns []*pooledConn // at least one
}

type pooledConn struct {
	*grpc.ClientConn
	calls int // number of calls in progress; guarded by grpcPool.mu
}

// newGRPCPool returns a pool with one connection. The pool creates each connection with dial, which must do no I/O.
// dial gets the idle timeout of the connection, or 0 for the default of the gRPC library.
func newGRPCPool(dial func(idle time.Duration) (*grpc.ClientConn, error)) (*grpcPool, error) {
	first, err := dial(0)
	if err != nil {
		return nil, err
	}
	return &grpcPool{dial: dial, conns: []*pooledConn{{ClientConn: first}}}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (p *grpcPool) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c := p.take()
	defer p.leave(c)
	return c.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. The pool does not count open streams as calls in progress, because
// Dapr's application callback has no streaming methods.
func (p *grpcPool) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error) {
	c := p.take()
	defer p.leave(c)
	return c.NewStream(ctx, d, method, opts...)
}

// take returns the first connection that has fewer than callsPerConn calls in progress. If there is none, it returns a
// new connection.
func (p *grpcPool) take() *pooledConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if c.calls < callsPerConn {
			c.calls++
			return c
		}
	}
	added, err := p.dial(spareIdle)
	if err != nil { // dial fails only for wrong options, and then newGRPCPool would have failed too
		p.conns[0].calls++
		return p.conns[0]
	}
	c := &pooledConn{ClientConn: added, calls: 1}
	p.conns = append(p.conns, c)
	return c
}

func (p *grpcPool) leave(c *pooledConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.calls--
}

// close closes all connections.
func (p *grpcPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
