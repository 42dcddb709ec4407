package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/http/watches"
	"github.com/quorate/quorate/internal/connlimit"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/httpdrain"
)

// The bounds of connections.
const (
	DefaultMaxHeaderBytes    = 4 << 10 // net/http adds 4 KiB of slack; more is answered with 431
	DefaultReadHeaderTimeout = 10 * time.Second
	DefaultIdleTimeout       = 2 * time.Minute
	DefaultWriteStall        = connlimit.DefaultWriteStall
	DefaultMaxConnections    = connlimit.DefaultMax
)

// Config is the configuration of a Server.
type Config struct {
	Address  string       // host:port; port 0 picks a free one
	Listener net.Listener // used instead of Address if not nil; the Server closes it
	Handler  http.Handler

	MaxHeaderBytes    int           // 0 = DefaultMaxHeaderBytes
	ReadHeaderTimeout time.Duration // 0 = DefaultReadHeaderTimeout
	IdleTimeout       time.Duration // of a connection between requests; 0 = DefaultIdleTimeout
	// WriteStall is the time after which a client that reads nothing is disconnected; 0 = DefaultWriteStall
	WriteStall     time.Duration
	MaxConnections int  // at the limit the connection that has been idle longest is closed; 0 = DefaultMaxConnections
	DisableH2C     bool // speak only HTTP/1.1; otherwise also HTTP/2 without TLS (h2c with prior knowledge)

	Logger *slog.Logger
	Open   prometheus.Gauge   // number of open connections; nil = not measured
	Cut    prometheus.Counter // connections closed because of the limit; nil = not measured
}

// Server serves one handler on one address. Open must be called once. Close may be called several times.
type Server struct {
	config Config
	http   http.Server
	drain  *httpdrain.Drain
	abort  context.CancelFunc // ends the contexts of requests that are being served
	active active
	taken  *watches.Connections
	served chan struct{} // closed when the accept loop has ended

	mu       sync.Mutex
	listener net.Listener
	failure  error // the error that ended the accept loop; nil after Close
}

// New makes a Server. It does no I/O.
func New(c Config) *Server {
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
	if c.ReadHeaderTimeout <= 0 {
		c.ReadHeaderTimeout = DefaultReadHeaderTimeout
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	if c.WriteStall <= 0 {
		c.WriteStall = DefaultWriteStall
	}
	s := &Server{config: c, served: make(chan struct{})}
	life, abort := context.WithCancel(context.Background())
	s.abort = abort
	connections := connlimit.New(connlimit.Options{Max: c.MaxConnections, Open: c.Open, Cut: c.Cut, Logger: c.Logger})
	s.taken = watches.NewConnections(watches.Options{Life: life, Requests: &s.active, Limiter: connections,
		Stall: c.WriteStall, Logger: c.Logger})
	base := watches.WithConnections(life, s.taken)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!c.DisableH2C)
	s.http = http.Server{
		Handler:                      &counted{server: s, next: markBusy(connections, c.Handler)},
		Protocols:                    protocols,
		MaxHeaderBytes:               c.MaxHeaderBytes,
		ReadHeaderTimeout:            c.ReadHeaderTimeout,
		IdleTimeout:                  c.IdleTimeout,
		DisableGeneralOptionsHandler: true,
		ConnState:                    follow(connections, s.taken),
		ConnContext:                  watches.WithConn,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ErrorLog:                     slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	s.drain = httpdrain.Attach(&s.http)
	return s
}

// Open opens the listener and starts to serve requests. It returns fault.Unavailable if the address cannot be used.
// ctx may end after Open has returned.
func (s *Server) Open(ctx context.Context) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return &fault.Error{
			Code: fault.Unavailable, Op: "http.Open", Msg: "cannot listen on " + s.config.Address, Err: err,
			Hint: "choose another address or port, or end the process that has it",
		}
	}
	s.mu.Lock()
	s.listener = listener
	s.mu.Unlock()
	go s.serve(listener)
	return nil
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	if s.config.Listener != nil {
		return s.config.Listener, nil
	}
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", s.config.Address)
}

// markBusy returns a handler that calls the given handler. While the given handler runs, the connection limit does not
// close the connection of the request. http.StateActive is not sufficient, because net/http sets it at the first byte
// of a request. With http.StateActive alone, a client could keep each idle connection open with a single byte.
func markBusy(w *connlimit.Limiter, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if c := watches.ConnOf(r.Context()); c != nil {
			w.Busy(c)
			defer w.Idle(c)
		}
		handler.ServeHTTP(rw, r)
	})
}

// follow returns a function for http.Server.ConnState that counts the open connections. A connection that a watch has
// taken over stays counted until the watch closes it. An upgraded connection stays counted until its handler returns.
func follow(w *connlimit.Limiter, taken *watches.Connections) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			w.Join(c)
		case http.StateHijacked:
			if !taken.Has(c) {
				w.LeaveWithRequests(c)
			}
		case http.StateClosed:
			w.Leave(c)
		}
	}
}

func (s *Server) serve(l net.Listener) {
	defer close(s.served)
	err := s.http.Serve(connlimit.Impatient(l, s.config.WriteStall))
	if errors.Is(err, http.ErrServerClosed) {
		return
	}
	s.mu.Lock()
	s.failure = &fault.Error{
		Code: fault.Unavailable, Op: "http.Serve", Msg: "the listener on " + l.Addr().String() + " ended", Err: err,
	}
	s.mu.Unlock()
}

// Addr returns the address on which the server listens, with the actual port, or nil before Open.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Wait blocks until the server no longer accepts connections. It returns nil after Close, and otherwise the error of
// the listener.
func (s *Server) Wait() error {
	<-s.served
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Close stops accepting connections, closes idle connections, and waits for the requests in progress. If ctx ends
// first, Close cancels these requests and waits until their handlers return. It then returns an error, unless only
// upgraded connections were left. Close is idempotent.
func (s *Server) Close(ctx context.Context) error {
	defer s.abort()
	if s.Addr() == nil {
		return nil
	}
	s.taken.CloseSoon()
	err := s.drain.Shutdown(ctx)
	if err == nil {
		select { // Shutdown does not wait for connections that were taken over
		case <-s.active.drain():
		case <-ctx.Done():
			if !s.taken.None() { // before abort, which ends the watches
				err = ctx.Err()
			}
			s.abort() // ends upgraded connections, which s.http.Close does not know
		}
	}
	if err != nil {
		s.abort()
	}
	_ = s.http.Close() // closes what Shutdown has left open; Shutdown has already returned the error
	<-s.served
	ended := s.active.drain()
	s.taken.CloseAll()
	<-ended
	if err == nil {
		return nil
	}
	return fault.Wrap(err, "http.Close", "requests were cut because they did not end in time")
}

// counted is a handler that counts the requests in progress. Close uses the count to wait for all handlers, even if
// their connections are closed.
type counted struct {
	server *Server
	next   http.Handler
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !c.server.active.Enter() {
		panic(http.ErrAbortHandler) // the connection is closed already
	}
	defer c.server.active.Leave()
	if r.ProtoMajor != 2 {
		c.next.ServeHTTP(w, r)
		return
	}
	bounded := &stallWriter{ResponseWriter: w, control: http.NewResponseController(w),
		stall: c.server.config.WriteStall}
	c.next.ServeHTTP(bounded, r)
	if bounded.unsent && r.Context().Err() == nil { // a deadline would keep a closed stream in memory until it passes
		bounded.begin() // net/http now sends what it has buffered
	}
}
