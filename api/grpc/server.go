package grpc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/connlimit"
	"github.com/quorate/quorate/internal/fault"
)

// The defaults of Config.
const (
	DefaultMaxBodySize    = 4 << 20 // bytes
	DefaultRequestTimeout = 10 * time.Second
	DefaultPingEvery      = 2 * time.Minute // finds clients that have disappeared or hang
)

// The bounds of connections.
const (
	connectTimeout = 10 * time.Second // for the HTTP/2 handshake
	idleTimeout    = 30 * time.Minute // after which a connection without calls is closed; clients dial again
	pingTimeout    = 20 * time.Second // for the answer to a ping; at most PingEvery
	pingsAllowed   = 5 * time.Second  // shortest interval of pings by clients; SDKs keep idle channels alive
	maxHeaderBytes = 16 << 10         // bytes of the metadata of a call, unless more is configured
	maxStreams     = 1024             // concurrent calls on one connection; clients queue further calls
	streamWindow   = 64 << 10         // flow-control window of a call in bytes, the minimum of grpc-go
	connWindow     = 1 << 20          // flow-control window of a connection in bytes
)

// Config is the configuration of a Server. All services belong to one application.
type Config struct {
	App            api.App
	State          *api.State
	Health         *api.Health
	Metadata       *api.Metadata
	Secrets        *api.Secrets
	Actors         *actors.Service
	Invoke         *invoke.Service // nil = calls to applications are not served
	Locks          *api.Locks
	Jobs           *api.Jobs
	Configurations *configurations.Service
	Topics         *pubsub.Service
	Subscriber     *pubsub.Subscriber // for streams of messages
	Workflows      *workflows.Service
	Bindings       *api.Bindings    // nil = output bindings are not served
	Shutdown       func(force bool) // asks the process to stop and returns at once

	// Start holds calls while the node starts, except those for health, metadata and shutdown. nil = no call is held.
	Start *api.StartGate

	Surface *api.Surface      // which methods are served; nil = all
	Calls   *api.CallLog      // logs calls; nil = no log
	Tracer  api.RequestTracer // nil = no spans

	Tokens         *api.Tokens       // API tokens; nil = no token is needed
	MaxBodySize    int64             // bytes of one message; 0 = DefaultMaxBodySize, negative = no limit
	RequestTimeout time.Duration     // of one call, and of the arrival of its message; 0 = DefaultRequestTimeout
	Requests       *admission.Budget // memory of requests, shared by all servers of the node; nil = no bound
	Answers        *admission.Budget // memory of answers that are being sent; nil = no bound
	MaxHeaderSize  int64             // bytes of the metadata of a call; values below 16 KiB count as 16 KiB
	// MaxConnections limits the connections of one listener. At the limit, the connection that has been idle longest
	// is closed. 0 = connlimit.DefaultMax
	MaxConnections int
	// WriteStall is the time after which a client that takes nothing is disconnected, and its watch ends. 0 =
	// connlimit.DefaultWriteStall
	WriteStall time.Duration
	PingEvery  time.Duration // interval of keepalive pings; 0 = DefaultPingEvery

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Stats      stats.Handler // sees every call; nil = none
}

// Server serves the API of one application over gRPC. It is safe for concurrent use.
type Server struct {
	*core
	start   *api.StartGate
	surface *api.Surface
	calls   *api.CallLog
	app     string            // id of the application, for the log of calls
	tracer  api.RequestTracer // nil = no spans
	log     *slog.Logger

	maxConns int // of one listener
	ping     time.Duration
	requests *admission.Budget
	waiting  atomic.Int64 // bytes of messages that arrived before a reservation
	buffers  mem.BufferPool
	shapes   sync.Map   // see tally
	state    *api.State // for the limits of messages; see tally

	tokens  *api.Tokens
	away    api.TurnedAway
	metrics *metrics
	server  *grpc.Server
	conns   openConns
}

// New creates a Server and registers its metrics. It does no I/O.
func New(c Config) (*Server, error) {
	s := &Server{
		core: newCore(c), start: c.Start, surface: c.Surface, calls: c.Calls, app: c.App.ID, tracer: c.Tracer,
		log: c.Logger, maxConns: c.MaxConnections, ping: cmp.Or(c.PingEvery, DefaultPingEvery), requests: c.Requests,
		tokens: c.Tokens,
		state:  c.State,
	}
	var err error
	// From 16 KiB to 4 MiB, a buffer is at most twice as large as its message. The default pool of grpc-go has no
	// sizes between 32 KiB and 1 MiB.
	if s.buffers, err = mem.NewBinaryTieredBufferPool(8, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22); err != nil {
		return nil, fault.Wrap(err, "grpc.New", "making the buffers")
	}
	if s.metrics, err = newMetrics(c.App, c.Registerer); err != nil {
		return nil, fault.Wrap(err, "grpc.New", "registering metrics")
	}
	dapr := newDaprMethods(c, s.core)
	s.server = grpc.NewServer(s.options(uint32(max(c.MaxHeaderSize, maxHeaderBytes)), c.Stats, dapr.proxy)...)
	s.register(c, dapr)
	reflection.Register(s.server)
	s.metrics.know(s.server.GetServiceInfo())
	return s, nil
}

func (s *Server) options(header uint32, observer stats.Handler, unknown grpc.StreamHandler) []grpc.ServerOption {
	out := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(s.limit)),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.UnknownServiceHandler(unknown),
		grpc.MaxHeaderListSize(header),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(streamWindow), // otherwise grpc-go grows the window of each call to megabytes
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: s.ping,
			Timeout: min(pingTimeout, s.ping)}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.InTapHandle(s.arrive),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}
	if observer != nil {
		out = append(out, grpc.StatsHandler(observer))
	}
	return out
}

// Serve starts a goroutine that accepts connections from l until Close. The Server closes l.
func (s *Server) Serve(l net.Listener) {
	w := connlimit.New(connlimit.Options{Max: s.maxConns, Open: s.metrics.open, Cut: s.metrics.cut, Logger: s.log})
	s.running.Go(func() {
		err := s.server.Serve(&bounded{connlimit.Impatient(l, s.stall), w, &s.conns})
		if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("the gRPC listener ended", "address", l.Addr().String(), "error", err)
		}
	})
}

// drainIdle is how long Close waits for clients to confirm the end of connections that have no calls. Close then closes
// these connections.
const drainIdle = time.Second

// Close stops accepting connections and waits for the calls in progress. Connections without a call are closed after
// drainIdle. If ctx ends while calls are in progress, Close aborts them, waits until their handlers return, and returns
// an error. Close is idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.end() // ends health watches, which otherwise last until their client closes them
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.server.GracefulStop()
	}()
	// Without this, grpc-go waits for seconds for clients that do not open their connection, or do not confirm its
	// end.
	s.conns.closeIf(func(c *conn) bool { return !c.opened() })
	impatient := time.AfterFunc(drainIdle, func() { s.conns.closeIf((*conn).idle) })
	defer impatient.Stop()
	var err error
	select {
	case <-graceful:
	case <-ctx.Done():
		if s.conns.closeIf((*conn).idle); len(s.conns.list()) > 0 {
			err = fault.Wrap(ctx.Err(), "grpc.Close", "calls were cut because they did not end in time")
		}
		s.server.Stop()
		<-graceful
	}
	s.running.Wait()
	return err
}
