package http

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/crowd"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of connections.
const (
	DefaultMaxHeaderBytes    = 4 << 10 // net/http adds 4 KiB of slack; more is answered with 431
	DefaultReadHeaderTimeout = 10 * time.Second
	DefaultIdleTimeout       = 2 * time.Minute
	DefaultWriteStall        = crowd.DefaultWriteStall
	DefaultMaxConnections    = crowd.DefaultMax
)

// ServerConfig is what a Server is made of.
type ServerConfig struct {
	Address  string       // host:port; port 0 picks a free one
	Listener net.Listener // used instead of Address if not nil; the Server closes it
	Handler  http.Handler

	MaxHeaderBytes    int           // 0 = DefaultMaxHeaderBytes
	ReadHeaderTimeout time.Duration // 0 = DefaultReadHeaderTimeout
	IdleTimeout       time.Duration // of a connection between requests; 0 = DefaultIdleTimeout
	WriteStall        time.Duration // a client that reads nothing of an answer for as long is cut; 0 = DefaultWriteStall
	MaxConnections    int           // one more closes the one that is idle for longest; 0 = DefaultMaxConnections
	DisableH2C        bool          // speak HTTP/1.1 only; else HTTP/2 without TLS too, for clients that begin with it

	Logger *slog.Logger
	Open   prometheus.Gauge   // how many connections are open; nil = not measured
	Cut    prometheus.Counter // connections that were one too many; nil = not measured
}

// Server listens and serves one handler. Open it once; Close it once or more.
type Server struct {
	config ServerConfig
	http   http.Server
	abort  context.CancelFunc // ends the contexts of requests that are being served
	active active
	served chan struct{} // closed when the accept loop has ended

	mu       sync.Mutex
	listener net.Listener
	failure  error // of the accept loop
}

// NewServer makes a Server. It does no I/O.
func NewServer(c ServerConfig) *Server {
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
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!c.DisableH2C)
	s.http = http.Server{
		Handler:                      &counted{server: s, next: c.Handler},
		Protocols:                    protocols,
		MaxHeaderBytes:               c.MaxHeaderBytes,
		ReadHeaderTimeout:            c.ReadHeaderTimeout,
		IdleTimeout:                  c.IdleTimeout,
		DisableGeneralOptionsHandler: true,
		ConnState:                    follow(crowd.New(crowd.Options{Max: c.MaxConnections, Open: c.Open, Cut: c.Cut, Logger: c.Logger})),
		BaseContext:                  func(net.Listener) context.Context { return life },
		ErrorLog:                     slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Open listens and begins to serve. ctx bounds the opening only. The error is
// fault.Unavailable if the address cannot be had.
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

// follow keeps the crowd up to date with what net/http tells of connections.
func follow(w *crowd.Crowd) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			w.Join(c)
		case http.StateActive:
			w.Busy(c)
		case http.StateIdle:
			w.Idle(c)
		case http.StateHijacked, http.StateClosed:
			w.Leave(c)
		}
	}
}

func (s *Server) serve(l net.Listener) {
	defer close(s.served)
	err := s.http.Serve(crowd.Impatient(l, s.config.WriteStall))
	if errors.Is(err, http.ErrServerClosed) {
		return
	}
	s.mu.Lock()
	s.failure = &fault.Error{
		Code: fault.Unavailable, Op: "http.Serve", Msg: "the listener on " + l.Addr().String() + " ended", Err: err,
	}
	s.mu.Unlock()
}

// Addr is where the server listens, with the port that was picked; nil before Open.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Wait returns when no more connections are accepted: nil after Close, else what ended
// the listener.
func (s *Server) Wait() error {
	<-s.served
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Close stops accepting and waits for the requests being served. When ctx ends first it
// cuts their connections, ends their contexts, and waits for their handlers to return.
// It is idempotent; the error is that of ctx if requests were cut.
func (s *Server) Close(ctx context.Context) error {
	defer s.abort()
	if s.Addr() == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.abort()
		_ = s.http.Close() // what it could say, Shutdown has said
	}
	<-s.served
	<-s.active.drain()
	if err == nil {
		return nil
	}
	return fault.Wrap(err, "http.Close", "requests were cut because they did not end in time")
}

// counted keeps count of the requests being served, so that Close can wait for them even
// after their connections were cut.
type counted struct {
	server *Server
	next   http.Handler
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !c.server.active.enter() {
		panic(http.ErrAbortHandler) // its connection is closed already
	}
	defer c.server.active.leave()
	c.next.ServeHTTP(w, r)
}
