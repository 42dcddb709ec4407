package pluggable

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

const (
	callTime = time.Minute // longest time of a call
	openTime = 5 * time.Second

	minPause = 100 * time.Millisecond // pause after the second failed attempt to connect; it doubles
	maxPause = 5 * time.Second
	stable   = 10 * time.Second // a connection that ends earlier counts as a failed attempt

	overhead  = 256 << 10 // bytes of a message around its data: metadata, key, id, and what the process adds
	maxHeader = 64 << 10  // bytes of the header of an answer
)

// keyInstance is the gRPC metadata key whose value is the name of the component. A process needs this key if it serves
// several components of one type.
const keyInstance = "x-component-instance"

// link connects a component to its process. After the connection is lost, the next call opens a new one. On each
// connection the process is initialised again, because it may have restarted. All methods are safe for concurrent use.
type link struct {
	options  Options
	greet    func(ctx context.Context, conn *session) error
	openTime time.Duration // longest time of one attempt to connect

	life    context.Context
	end     context.CancelFunc
	path    atomic.Value   // string: path of the socket that was found last
	running sync.WaitGroup // attempts to connect, and to end a connection

	mu        sync.Mutex // guards the fields below, and those of sessions that say so
	closed    bool
	served    bool // there was a successful connection
	current   *session
	trying    *attempt // nil = none
	failure   error    // error of the last attempt
	pause     time.Duration
	notBefore time.Time // earliest time of the next attempt
}

// attempt is an attempt to connect.
type attempt struct {
	step atomic.Value  // string: what the attempt waits for
	done chan struct{} // closed when err is set
	err  error
}

// session is one connection to the process. It never reconnects, because the process must be initialised on each
// connection before other calls.
type session struct {
	link     *link
	conn     *grpc.ClientConn
	services []string // sorted names of the gRPC services of the process
	begun    time.Time

	over  bool // the connection is lost; guarded by link.mu
	users int  // calls in progress; guarded by link.mu
}

// openLink opens the first connection to the process. While the socket does not exist, or no process listens on it,
// openLink retries until ctx ends. The function greet initialises the process on each new connection.
func openLink(ctx context.Context, o Options, greet func(ctx context.Context, s *session) error) (*link, error) {
	l := &link{options: o, greet: greet, openTime: openTime}
	if until, ok := ctx.Deadline(); ok {
		l.openTime = max(time.Until(until), openTime)
	}
	l.life, l.end = context.WithCancel(context.Background())
	err := outside.Wait(ctx, func(ctx context.Context) error {
		s, err := l.enter(ctx)
		if err == nil {
			s.leave()
		}
		return err
	})
	if err != nil {
		l.close()
		return nil, l.suggest(err)
	}
	return l, nil
}

// suggest improves the error for a type that is not built in and has no socket. If a built-in type has a similar name,
// the new error suggests this name.
func (l *link) suggest(err error) error {
	near := suggest.For(l.options.Type, l.options.BuiltIn)
	if near == "" || !fault.Is(err, fault.Unavailable) {
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Op: "pluggable.Open", Err: err,
		Msg: "the type " + l.options.Type + " is not built in (did you mean " + near + "?), and no component serves it"}
}

// close ends the connection and waits for attempts to connect.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	s := l.current
	l.current = nil
	l.mu.Unlock()
	l.end()
	if s != nil {
		s.shut()
	}
	l.running.Wait()
}

func (l *link) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// enter returns the current connection, or opens a new one. The caller must call leave on the session when its call has
// ended.
func (l *link) enter(ctx context.Context) (*session, error) {
	const op = "pluggable.Connect"
	for {
		l.mu.Lock()
		switch {
		case l.closed:
			l.mu.Unlock()
			return nil, errClosed(op)
		case l.current != nil:
			s := l.current
			s.users++
			l.mu.Unlock()
			return s, nil
		case l.trying == nil && time.Now().Before(l.notBefore):
			err := l.failure
			l.mu.Unlock()
			return nil, err
		case l.trying == nil:
			started := &attempt{done: make(chan struct{})}
			l.trying = started
			l.running.Go(func() { l.connect(started) })
		}
		a := l.trying
		l.mu.Unlock()
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			step, _ := a.step.Load().(string)
			return nil, &fault.Error{Code: fault.Timeout, Op: op, Err: ctx.Err(),
				Msg:  l.who() + " does not answer: waiting for " + step,
				Hint: "look at the log of the component"}
		}
	}
}

// connect carries out the attempt a to connect, and then closes a.done.
func (l *link) connect(a *attempt) {
	ctx, cancel := context.WithTimeout(l.life, l.openTime)
	defer cancel()
	s, err := l.open(ctx, a)
	l.mu.Lock()
	if err == nil && s.over {
		err = l.lost()
	}
	switch {
	case l.closed:
		err = errClosed("pluggable.Connect")
	case err != nil && l.served && !fault.Is(err, fault.Unavailable): // the current callers have made no mistake
		err = &fault.Error{Code: fault.Unavailable, Op: "pluggable.Connect", Err: err,
			Msg: "the component was lost and cannot be used again"}
	}
	again := l.served && err == nil
	if err == nil {
		l.current, l.served = s, true
	} else {
		l.failed(err)
	}
	a.err = err
	l.trying = nil
	l.mu.Unlock()
	if err != nil && s != nil {
		s.shut()
	}
	if again {
		l.options.Logger.Info("the pluggable component is connected and initialised again")
	}
	close(a.done)
}

// failed records a failed attempt to connect, and delays the next attempt. The delay is 0 after the first failure and
// minPause after the second. It then doubles with each failure, up to maxPause. Before the first successful connection
// there is no delay, because openLink itself waits between attempts. The caller holds l.mu.
func (l *link) failed(err error) {
	l.failure = err
	if l.served {
		l.notBefore = time.Now().Add(l.pause)
		l.pause = min(max(2*l.pause, minPause), maxPause)
	}
}

// lost returns the error of a connection that has ended.
func (l *link) lost() error {
	return &fault.Error{Code: fault.Unavailable, Op: "pluggable.Connect",
		Msg: l.who() + " ended the connection", Hint: "look at the log of the component, and that it runs"}
}

// who returns the name of the process for messages.
func (l *link) who() string {
	path, ok := l.path.Load().(string)
	if !ok {
		path = filepath.Join(l.options.Folder, l.options.socket()+".sock")
	}
	return "the component at " + path
}

// open connects to the socket, lists the services of the process, and initialises the process. It may return a session
// together with an error. The caller must then call shut on the session.
func (l *link) open(ctx context.Context, a *attempt) (*session, error) {
	a.step.Store("its socket")
	path, err := findSocket(l.options.Folder, l.options.socket())
	if err != nil {
		return nil, err
	}
	l.path.Store(path)
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok {
			err = refused.Err // the message already has the path
		}
		return nil, &fault.Error{Code: fault.Unavailable, Op: "pluggable.Connect", Err: err,
			Msg: "no component listens at " + path, Hint: "start the component; its process may have ended"}
	}
	s := &session{link: l, begun: time.Now()}
	if s.conn, err = s.client(raw); err != nil {
		_ = raw.Close()
		return nil, &fault.Error{Code: fault.Internal, Op: "pluggable.Connect", Msg: "the gRPC client cannot be made",
			Err: err}
	}
	ctx = l.outgoing(ctx)
	a.step.Store("the list of its services")
	if s.services, err = services(ctx, s.conn); err != nil {
		return s, l.fault("pluggable.Services", "", &failure{err: err, sent: true, ended: ctx.Err()}, reading)
	}
	a.step.Store("Init")
	return s, l.greet(ctx, s)
}

// client returns a gRPC connection over raw. When raw ends, the session ends.
func (s *session) client(raw net.Conn) (*grpc.ClientConn, error) {
	var taken atomic.Bool
	dial := func(context.Context, string) (net.Conn, error) {
		if taken.Swap(true) {
			s.end()
			return nil, s.link.lost()
		}
		return &tracked{Conn: raw, session: s}, nil
	}
	largest := int(min(s.link.options.MaxMessage+overhead, math.MaxInt32))
	return grpc.NewClient("passthrough:///component", grpc.WithContextDialer(dial), grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0), grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(), grpc.WithUserAgent("quorate"), grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithStatsHandler(traces{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.MaxCallSendMsgSize(math.MaxInt32)))
}

// tracked is a connection. When gRPC closes it, its session ends.
type tracked struct {
	net.Conn
	session *session
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.session.end()
	return t.Conn.Close()
}

// end records that the session is over, so that the next call opens a new connection. Calls in progress may still
// succeed, for example if the process is shutting down gracefully.
func (s *session) end() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	s.over = true
	if l.current != s {
		return
	}
	l.current = nil
	if time.Since(s.begun) < stable {
		l.failed(l.lost())
	} else {
		l.pause = 0
	}
	if s.users == 0 {
		l.running.Go(s.shut) // gRPC may hold its locks while it closes the connection
	}
}

// leave ends a call that enter began. It reports whether the session is over.
func (s *session) leave() bool {
	s.link.mu.Lock()
	s.users--
	over, last := s.over, s.over && s.users == 0
	s.link.mu.Unlock()
	if last {
		s.shut()
	}
	return over
}

// shut closes the connection, which ends all calls on it.
func (s *session) shut() { _ = s.conn.Close() }

// has reports whether the process has a service.
func (s *session) has(service string) bool {
	_, ok := slices.BinarySearch(s.services, service)
	return ok
}

// need returns fault.Invalid if the process does not have a service.
func (s *session) need(service string) error {
	if s.has(service) {
		return nil
	}
	return s.lacks(service)
}

// lacks returns the error for a service that the process does not have.
func (s *session) lacks(service string) error {
	return &fault.Error{Code: fault.Invalid, Op: "pluggable.Open",
		Msg:  s.link.who() + " has no service " + service + "; it has: " + shorten(strings.Join(s.services, ", ")),
		Hint: "correct spec.type"}
}

// outgoing returns the context for a call to the process. Its only gRPC metadata is the name of the component.
func (l *link) outgoing(ctx context.Context) context.Context {
	name := l.options.Name
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		name = url.PathEscape(name) // gRPC allows only ASCII
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(keyInstance, name))
}

// call runs f, which makes one call to the process. If the connection is lost, call runs f again on a new connection,
// up to three attempts in total. It does not repeat a write that the process may have received. call returns nil on
// success.
func (l *link) call(ctx context.Context, doing verb, f func(context.Context, grpc.ClientConnInterface) error) *failure {
	const attempts = 3
	ctx, cancel := context.WithTimeout(l.outgoing(ctx), callTime)
	defer cancel()
	for try := 1; ; try++ {
		s, err := l.enter(ctx)
		if err != nil {
			return &failure{err: err, ended: ctx.Err()}
		}
		t := &trace{}
		err = f(context.WithValue(ctx, traceKey{}, t), s.conn)
		over := s.leave()
		if err == nil {
			return nil
		}
		if try == attempts || !over || doing == writing && t.sent.Load() || ctx.Err() != nil {
			return &failure{err: err, sent: t.sent.Load(), begun: t.begun.Load(), ended: ctx.Err()}
		}
	}
}

// errClosed returns the error of a call after Close.
func errClosed(op string) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the component is closed"}
}

// tooMany returns the error for an answer with more than limit parts. The parameter what says what the parts are.
func (l *link) tooMany(op, what string, limit int) error {
	return &fault.Error{Code: fault.TooLarge, Op: op,
		Msg: fmt.Sprintf("%s has more than %d %s", l.who(), limit, what)}
}
