package eventgrid

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/connlimit"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
)

// input receives the events of one subscription. It is safe for concurrent use.
type input struct {
	settings   inputSettings
	subscriber *subscriber
	keys       *keys
	verifier   *verifier // nil = deliveries have no token
	log        *slog.Logger

	life context.Context // context of deliveries; close cancels it if it cannot wait longer
	end  context.CancelFunc

	mu       sync.Mutex // guards the fields below
	state    inputState
	starting context.CancelFunc // cancels a start in progress
	started  chan struct{}      // closed when the start in progress has returned
	server   *http.Server
	handler  *handler // handler of server
}

type inputState uint8

const (
	idle inputState = iota
	starting
	running
	closed
)

func newInput(o Options) (*input, error) {
	settings, err := readInput(o)
	if err != nil {
		return nil, err
	}
	in := &input{settings: settings, log: o.Logger}
	if in.subscriber, err = newSubscriber(o, &in.settings); err != nil {
		return nil, err
	}
	if settings.protected {
		if in.keys, err = newKeys(&in.settings); err != nil {
			return nil, err
		}
		in.verifier = newVerifier(&in.settings, in.keys)
	}
	in.life, in.end = context.WithCancel(context.Background())
	return in, nil
}

// Start opens the listener and then creates the event subscription. The listener must be open first, because Event
// Grid makes its validation handshake while the subscription is being created. If a step fails, Start closes the
// listener and returns an error.
func (in *input) Start(ctx context.Context, sink bindings.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := in.begin(cancel)
	if err != nil {
		return err
	}
	defer close(done)
	if err = in.open(ctx, sink); err != nil {
		in.stop(context.Background(), true)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.state == closed && err == nil: // close stops the server
		return fault.New(fault.Unavailable, "eventgrid.Start", "the binding is closed")
	case in.state == closed:
	case err == nil:
		in.state = running
	default:
		in.state = idle
	}
	return err
}

// begin records that the input is starting, and stores cancel so that the method close can abort the start. The caller
// must close done when the start has ended. begin returns an error if the input is closed or was started already.
func (in *input) begin(cancel context.CancelFunc) (done chan struct{}, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch in.state {
	case closed:
		return nil, fault.New(fault.Unavailable, "eventgrid.Start", "the binding is closed")
	case starting, running:
		return nil, fault.New(fault.Internal, "eventgrid.Start", "it has been started already")
	}
	done = make(chan struct{})
	in.state, in.starting, in.started = starting, cancel, done
	return done, nil
}

func (in *input) open(ctx context.Context, sink bindings.Sink) error {
	if err := in.listen(ctx, sink); err != nil {
		return err
	}
	if in.verifier == nil {
		in.log.Warn(metadataAuth+" is none: whoever knows the endpoint can send events", "secretInEndpoint",
			in.settings.endpoint.RawQuery != "")
	} else if _, err := in.keys.issuers(ctx); err != nil {
		return err
	}
	return in.subscriber.ensure(ctx)
}

// The bounds of a connection.
const (
	headerTime     = 10 * time.Second
	readTime       = 30 * time.Second // longest time of a request; then the sender is disconnected
	idleTime       = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	maxConnections = 1024 // beyond that, the one without an admitted delivery for the longest time is closed
)

func (in *input) listen(ctx context.Context, sink bindings.Sink) error {
	at := net.JoinHostPort(in.settings.host, strconv.Itoa(in.settings.port))
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "eventgrid.Start", Msg: "cannot listen on " + at, Err: err,
			Hint: "free the port, or choose another " + metadataPort}
	}
	connections := connlimit.New(connlimit.Options{Max: maxConnections, Logger: in.log})
	h := newHandler(in, sink, connections)
	server := &http.Server{
		Handler: h, ConnState: count(connections), ConnContext: withConn,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: readTime + deliverTime,
		IdleTimeout: idleTime, MaxHeaderBytes: maxHeaderBytes,
		BaseContext: func(net.Listener) context.Context { return in.life }, ErrorLog: logadapt.Standard(in.log),
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.state == closed {
		_ = l.Close() // no connection was accepted yet
		return fault.New(fault.Unavailable, "eventgrid.Start", "the binding is closed")
	}
	in.server, in.handler = server, h
	h.running.Go(func() { _ = server.Serve(l) }) // returns only ErrServerClosed: no other code closes l
	in.log.Info("listening for the handshake and for events", "address", l.Addr().String(), "path",
		in.settings.endpoint.EscapedPath())
	return nil
}

// count returns a callback for net/http that reports opened and closed connections to the limiter.
func count(connections *connlimit.Limiter) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			connections.Join(c)
		case http.StateClosed:
			connections.Leave(c)
		}
	}
}

type connKey struct{}

// withConn adds the connection of a request to its context.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// close stops listening and waits for the deliveries in progress. If ctx ends first, close cancels them.
func (in *input) close(ctx context.Context) error {
	in.mu.Lock()
	in.state = closed
	cancel, started := in.starting, in.started
	in.mu.Unlock()
	if cancel != nil {
		cancel()
		<-started
	}
	in.stop(ctx, false)
	in.end()
	in.subscriber.manager.credential.Close()
	if in.keys != nil {
		in.keys.close()
	}
	return nil
}

// stop stops the server and waits for its goroutines. Deliveries in progress may finish until ctx ends, and are then
// cancelled. If atOnce is true, stop closes all connections immediately.
func (in *input) stop(ctx context.Context, atOnce bool) {
	in.mu.Lock()
	server, h := in.server, in.handler
	in.server, in.handler = nil, nil
	in.mu.Unlock()
	if server == nil {
		return
	}
	if atOnce || server.Shutdown(ctx) != nil {
		_ = server.Close() // ignored, because there is nothing left to do
		if !atOnce {
			in.end()
		}
	}
	h.running.Close()
}
