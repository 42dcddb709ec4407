package grpc

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/crowd"
	"github.com/quorate/quorate/internal/fault"
)

// The defaults of Config.
const (
	DefaultMaxBodySize    = 4 << 20 // bytes
	DefaultRequestTimeout = 10 * time.Second
)

// The bounds of connections.
const (
	connectTimeout = 10 * time.Second // of the HTTP/2 handshake
	idleTimeout    = 30 * time.Minute // of a connection without calls; clients dial again
	pingEvery      = 2 * time.Minute  // finds clients that vanished
	pingsAllowed   = 5 * time.Second  // clients may ask as often: SDKs keep idle channels alive
	maxHeaderBytes = 16 << 10         // of the metadata of a call
	maxStreams     = 1024             // calls under way on one connection; clients let more wait
)

// Config is what a Server is made of. All services are of one application.
type Config struct {
	App      api.App
	State    *api.State
	Health   *api.Health
	Metadata *api.Metadata
	Secrets  *api.Secrets
	Invoke   *api.Invoke      // nil = calls of applications are not served
	Bindings *api.Bindings    // nil = output bindings are not served
	Shutdown func(force bool) // asks the process to stop and returns at once

	Tokens         *api.Tokens   // API tokens; nil = no token is needed
	MaxBodySize    int64         // bytes of one message; 0 = DefaultMaxBodySize, negative = no limit
	RequestTimeout time.Duration // of one service call and of the arrival of its message; 0 = DefaultRequestTimeout
	MaxConnections int           // of one listener; one more closes the one that is idle for longest; 0 = crowd.DefaultMax

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Server serves the API of one application over gRPC. It is safe for concurrent use.
type Server struct {
	runtimev1.UnimplementedDaprServer

	app      api.App
	state    *api.State
	health   *api.Health
	metadata *api.Metadata
	secrets  *api.Secrets
	invoke   *api.Invoke
	bindings *api.Bindings
	stop     func(force bool)
	limit    int64 // bytes of one message
	crowded  int   // connections of one listener
	timeout  time.Duration
	log      *slog.Logger

	tokens  *api.Tokens
	away    api.TurnedAway
	metrics *metrics
	server  *grpc.Server
	life    context.Context // ends when Close is called
	end     context.CancelFunc
	running sync.WaitGroup
}

// New makes a Server and registers its metrics. It does no I/O.
func New(c Config) (*Server, error) {
	s := &Server{
		app: c.App, state: c.State, health: c.Health, metadata: c.Metadata, secrets: c.Secrets, invoke: c.Invoke, bindings: c.Bindings, stop: c.Shutdown,
		tokens: c.Tokens, timeout: c.RequestTimeout, crowded: c.MaxConnections, log: c.Logger,
	}
	if s.timeout <= 0 {
		s.timeout = DefaultRequestTimeout
	}
	var err error
	if s.metrics, err = newMetrics(c.App, c.Registerer); err != nil {
		return nil, fault.Wrap(err, "grpc.New", "registering metrics")
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.limit = messageLimit(c.MaxBodySize)
	s.server = grpc.NewServer(s.options()...)
	runtimev1.RegisterDaprServer(s.server, s)
	healthv1.RegisterHealthServer(s.server, &healthServer{owner: s})
	reflection.Register(s.server)
	s.metrics.know(s.server.GetServiceInfo())
	return s, nil
}

func messageLimit(size int64) int64 {
	switch {
	case size == 0:
		return DefaultMaxBodySize
	case size < 0:
		return math.MaxInt32
	}
	return min(size, math.MaxInt32)
}

func (s *Server) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(s.limit)),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.UnknownServiceHandler(s.proxy),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: pingEvery}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.InTapHandle(s.arrive),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}
}

// Serve accepts connections from l until Close, in a goroutine of its own. The Server
// closes l.
func (s *Server) Serve(l net.Listener) {
	w := crowd.New(crowd.Options{Max: s.crowded, Open: s.metrics.open, Cut: s.metrics.cut, Logger: s.log})
	s.running.Go(func() {
		if err := s.server.Serve(&bounded{crowd.Impatient(l, crowd.DefaultWriteStall), w}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("the gRPC listener ended", "address", l.Addr().String(), "error", err)
		}
	})
}

// Close stops accepting and waits for the calls being served. When ctx ends first it cuts
// them and waits for their handlers to return. It is idempotent; the error is that of ctx
// if calls were cut.
func (s *Server) Close(ctx context.Context) error {
	s.end() // a watch would last for as long as its client does
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.server.GracefulStop()
	}()
	var err error
	select {
	case <-graceful:
	case <-ctx.Done():
		err = fault.Wrap(ctx.Err(), "grpc.Close", "calls were cut because they did not end in time")
		s.server.Stop()
		<-graceful
	}
	s.running.Wait()
	return err
}
