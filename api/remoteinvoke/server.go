package remoteinvoke

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/httpcopy"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/httpdrain"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/internal/peer"
)

const (
	serverIdle     = 2 * time.Minute
	maxHeaderBytes = 1 << 20
)

// ServerConfig is the configuration of a Server. All fields are required.
type ServerConfig struct {
	Listener net.Listener // accepts the tunnels of other nodes; Close closes it
	Callee   *invoke.Callee
	Logger   *slog.Logger

	// Prove reports whether the connecting node serves the application caller. at is the authenticated identity of the
	// connecting node. If ok is true, domain is the trust domain of the application.
	Prove func(at peer.Caller, caller api.App) (domain string, ok bool)
}

// Server serves calls of other nodes.
type Server struct {
	config ServerConfig
	http   http.Server
	drain  *httpdrain.Drain
	abort  context.CancelFunc
	served chan struct{}
	closed sync.Once
	err    error

	calls  lifecycle.Tracker
	copier httpcopy.Copier
}

// NewServer makes a Server. It does no I/O.
func NewServer(c ServerConfig) *Server {
	s := &Server{config: c, served: make(chan struct{})}
	life, abort := context.WithCancel(context.Background())
	s.abort = abort
	s.http = http.Server{
		Handler: http.HandlerFunc(s.serve), IdleTimeout: serverIdle, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout:            10 * time.Second,
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return life },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	s.drain = httpdrain.Attach(&s.http)
	return s
}

type connKey struct{}

// Open starts to serve calls from Listener.
func (s *Server) Open() {
	go func() {
		defer close(s.served)
		_ = s.http.Serve(s.config.Listener) // ends when Close or the peer port closes the listener
	}()
}

// Close stops accepting calls, closes connections without a call, and waits for the calls in progress. If ctx ends
// first, Close aborts the calls and returns an error. Close is idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.closed.Do(func() {
		defer s.abort()
		err := s.drain.Shutdown(ctx)
		s.abort()
		_ = s.http.Close() // closes what Shutdown has left open; Shutdown has already returned the error
		if err != nil {
			s.err = fault.Wrap(err, "api.peer", "calls from other nodes were cut because they did not end in time")
		}
		<-s.served
		s.calls.Close()
	})
	return s.err
}

// serve serves one call of another node.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.calls.Enter() {
		panic(http.ErrAbortHandler) // Close has cut the connection
	}
	defer s.calls.Leave()
	body := httpcopy.NewBody(r)
	in, err := s.inbound(w, r, body)
	var answer invoke.Answer
	if err == nil {
		answer, err = s.config.Callee.TakeRemote(in)
	}
	if err != nil {
		s.refuse(w, r, body, err)
		return
	}
	if answer.Session != "" {
		answer.Header[headerSession] = []string{answer.Session}
	}
	if err := s.copier.Relay(w, r, body, answer.Response); err != nil && !errors.Is(err, httpcopy.ErrStarted) {
		s.refuse(w, r, body, err)
	} else if err != nil {
		panic(http.ErrAbortHandler) // an answer that is cut short must not look complete
	}
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, body *httpcopy.Body, err error) {
	if fault.Is(err, fault.Internal) {
		s.config.Logger.Error("a call from another node failed", "method", r.Method, "error", fault.Text(err))
	}
	body.LimitRest(w, r)
	w.Header()[headerFault] = []string{encodeFault(err)}
	w.WriteHeader(faultStatus)
}

// inbound converts a request from another node to a call. Informational answers (1xx) to the call are written to w.
func (s *Server) inbound(w http.ResponseWriter, r *http.Request, body io.ReadCloser) (*invoke.Inbound, error) {
	target, ok := decodeApp(first(r.Header, headerTarget))
	caller, known := decodeApp(first(r.Header, headerCaller))
	path, query, mark, fits := stripPrefix(r.RequestURI)
	if !ok || !known || !fits || r.Method == http.MethodConnect {
		return nil, fault.New(fault.Invalid, "api.peer", "the call does not name its target, or has the verb CONNECT")
	}
	method, err := methodOf(path, first(r.Header, headerMethod))
	if err != nil {
		return nil, fault.New(fault.Invalid, "api.peer", fault.Text(err))
	}
	in := &invoke.Inbound{
		Target: target, Caller: invoke.Caller{App: caller}, Method: method,
		Trace: api.TraceID(first(r.Header, "Traceparent")), Session: first(r.Header, headerSession),
		Remote: remoteOf(first(r.Header, headerRemote), r.RemoteAddr),
	}
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		if domain, ok := s.config.Prove(peer.RemotePeer(conn), caller); ok {
			in.Caller.Proven, in.Caller.TrustDomain = true, domain
		}
	}
	in.Request = outgoing(httpcopy.Informational(w, r, invoke.CleanHeader), r, body)
	in.Request.URL = invoke.MethodURL(method, query, mark)
	return in, nil
}

// remoteOf returns the network address of the calling application. The calling node has sent address, and its own
// address is node. If address is a loopback address or not an IP address, the application runs on the host of its node,
// and the result is node. Otherwise the result is address.
func remoteOf(address, node string) string {
	if at, err := netip.ParseAddrPort(address); err != nil || at.Addr().Unmap().IsLoopback() {
		return node
	}
	return address
}

// methodOf returns the method of a call from the request path and the header headerMethod. The header has the
// percent-encoded gRPC method, and is empty for other calls. methodOf returns an error if the two name different
// methods, because access rules check only the path.
func methodOf(path, text string) (invoke.MethodPath, error) {
	method, err := invoke.ParseMethod(path)
	if err != nil || text == "" {
		return method, err
	}
	if text, err = url.PathUnescape(text); err != nil {
		return method, err
	}
	named, err := invoke.ParseText(text)
	if err == nil && named.Path != method.Path {
		err = fault.New(fault.Invalid, "api.peer", "the call names two methods")
	}
	return named, err
}

// outgoing returns the request for the application, without its URL.
func outgoing(ctx context.Context, r *http.Request, body io.ReadCloser) *http.Request {
	body, trailer := invoke.ForwardTrailer(r.Header, body, r.Trailer)
	out := new(http.Request).WithContext(ctx)
	out.Method, out.Proto, out.ProtoMajor, out.ProtoMinor = r.Method, "HTTP/1.1", 1, 1
	out.Header, out.Body, out.ContentLength = invoke.ForwardHeader(r.Header), body, r.ContentLength
	out.Trailer = trailer
	switch {
	case r.ContentLength == 0:
		out.Body = http.NoBody
	case len(trailer) > 0:
		out.TransferEncoding = invoke.Chunked()
	}
	return out
}
