package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/relay"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

const (
	serverIdle     = 2 * time.Minute
	maxHeaderBytes = 1 << 20
)

// ServerConfig is what a Server is made of. All are required.
type ServerConfig struct {
	Listener net.Listener // of the tunnels
	Callee   *api.Callee
	Logger   *slog.Logger

	// Prove decides whether what a connection proves of the node at its other end covers
	// the application that calls, and gives its trust domain.
	Prove func(at peer.Caller, caller api.App) (domain string, ok bool)
}

// Server takes calls from other nodes.
type Server struct {
	config ServerConfig
	http   http.Server
	abort  context.CancelFunc
	served chan struct{}
	closed sync.Once
	err    error

	calls  sync.WaitGroup
	copier relay.Copier
}

// NewServer makes a Server. It does no I/O.
func NewServer(c ServerConfig) *Server {
	s := &Server{config: c, served: make(chan struct{})}
	life, abort := context.WithCancel(context.Background())
	s.abort = abort
	s.http = http.Server{
		Handler: http.HandlerFunc(s.serve), IdleTimeout: serverIdle, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: 10 * time.Second,
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return life },
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:                     slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

type connKey struct{}

// Open begins to serve.
func (s *Server) Open() {
	go func() {
		defer close(s.served)
		_ = s.http.Serve(s.config.Listener) // it ends with the listener, which Close and the peer port close
	}()
}

// Close takes no new calls and waits for those under way; when ctx ends it cuts them off.
// Idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.closed.Do(func() {
		defer s.abort()
		err := s.http.Shutdown(ctx)
		s.abort()
		if err != nil {
			_ = s.http.Close() // what it could say, Shutdown has said
			s.err = fault.Wrap(err, "api.peer", "calls from other nodes were cut because they did not end in time")
		}
		<-s.served
		s.calls.Wait()
	})
	return s.err
}

// serve takes one call.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	defer s.calls.Done()
	body := relay.NewBody(r)
	in, err := s.inbound(r, body)
	var answer api.Answer
	if err == nil {
		in.Request = in.Request.WithContext(relay.Informational(in.Request.Context(), w))
		answer, err = s.config.Callee.TakeRemote(in)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if answer.Session != "" {
		answer.Header[headerSession] = []string{answer.Session}
	}
	if err := s.copier.Relay(w, r, body, answer.Response); err != nil && !errors.Is(err, relay.ErrStarted) {
		s.refuse(w, r, err)
	} else if err != nil {
		panic(http.ErrAbortHandler) // an answer that is cut short must not look complete
	}
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if fault.Is(err, fault.Internal) {
		s.config.Logger.Error("a call from another node failed", "method", r.Method, "error", fault.Text(err))
	}
	w.Header()[headerFault] = []string{encodeFault(err)}
	w.WriteHeader(faultStatus)
}

// inbound turns a request between nodes into a call.
func (s *Server) inbound(r *http.Request, body io.ReadCloser) (*api.Inbound, error) {
	target, ok := decodeApp(first(r.Header, headerTarget))
	caller, known := decodeApp(first(r.Header, headerCaller))
	path, query, mark, fits := stripPrefix(r.RequestURI)
	if !ok || !known || !fits {
		return nil, fault.New(fault.Invalid, "api.peer", "the call does not say what it is for")
	}
	decoded, err := api.MethodPath(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "api.peer", fault.Text(err))
	}
	in := &api.Inbound{
		Target: target, Caller: api.Caller{App: caller}, Decoded: decoded,
		Trace: api.TraceID(first(r.Header, "Traceparent")), Session: first(r.Header, headerSession), Remote: first(r.Header, headerRemote),
	}
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		if domain, ok := s.config.Prove(peer.RemotePeer(conn), caller); ok {
			in.Caller.Proven, in.Caller.TrustDomain = true, domain
		}
	}
	in.Request = outgoing(r, body, path, decoded, query, mark)
	return in, nil
}

func outgoing(r *http.Request, body io.ReadCloser, path, decoded, query string, mark bool) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: api.MethodURL(path, decoded, query, mark), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: api.ForwardHeader(r.Header), Body: body, ContentLength: r.ContentLength, Trailer: r.Trailer,
	}
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	return out.WithContext(r.Context())
}
