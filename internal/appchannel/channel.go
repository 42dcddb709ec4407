// Package appchannel sends requests from the runtime to the application: over HTTP/1.1, over HTTP/2 with or without
// TLS, or as calls of Dapr's gRPC application callback. The package owns the connections to one application, the limit
// of concurrent calls, the token by which the application authenticates the node, and the health of the application.
//
// A Channel treats requests from the API and from other nodes in the same way. Between Open and Close, it has one
// goroutine, the prober, which monitors the health of the application.
package appchannel

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// Protocol is the protocol in which the application is called.
type Protocol string

// The protocols.
const (
	HTTP  Protocol = "http"
	HTTPS Protocol = "https"
	H2C   Protocol = "h2c"
	GRPC  Protocol = "grpc"
	GRPCS Protocol = "grpcs"
)

// Options configure a Channel. Port and Logger are required.
type Options struct {
	Protocol       Protocol // default HTTP
	Address        string   // default 127.0.0.1
	Port           int
	MaxConcurrency int    // concurrent calls, the rest wait; 0 or less = no limit
	Token          string // sent as dapr-api-token; empty = none
	Health         Health
	OptionsTimeout time.Duration     // timeout of Takes; default 3 s
	MaxMessage     int64             // bytes of a gRPC request, and of its answer; default 4 MiB; negative = no limit
	MaxHead        int64             // bytes of the headers of an answer; default atmostonce.DefaultMaxHead
	Memory         atmostonce.Memory // memory for the headers of answers; nil = no bound

	// OnHealth is called when the application becomes healthy or unhealthy. It must not block. nil = not called.
	OnHealth func(healthy bool)
	// OnLoad is called with the number of calls in progress whenever that number changes. It must not block. nil =
	// not called.
	OnLoad   func(inFlight int)
	Logger   *slog.Logger
	Observer Observer // nil = none
}

// Observer is notified of requests to the application. Implementations must be safe for concurrent use.
type Observer interface {
	// Called is called after each request to an HTTP application. If the application has not answered, the status is
	// 500. sent and received are bytes; negative numbers mean unknown.
	Called(verb, path string, status int, sent, received int64, took time.Duration)
	// Probed is called after a health probe of an HTTP application.
	Probed(status int, took time.Duration)
	// GRPCClient returns the handler that observes the gRPC calls to the application.
	GRPCClient() stats.Handler
}

// Health configures the health probes of the application.
type Health struct {
	Enabled   bool          // otherwise an application with an open port is healthy
	Path      string        // path to probe in an HTTP application; default /healthz
	Interval  time.Duration // default 5 s
	Timeout   time.Duration // default 500 ms
	Threshold int           // consecutive failures that make the application unhealthy; default 3
}

func (o Options) withDefaults() Options {
	o.Protocol = cmp.Or(o.Protocol, HTTP)
	o.Address = cmp.Or(o.Address, "127.0.0.1")
	o.MaxMessage = cmp.Or(o.MaxMessage, 4<<20)
	if o.MaxMessage < 0 {
		o.MaxMessage = math.MaxInt32 // the maximum size that a gRPC connection sends
	}
	o.MaxHead = cmp.Or(o.MaxHead, atmostonce.DefaultMaxHead)
	o.OptionsTimeout = cmp.Or(o.OptionsTimeout, 3*time.Second)
	h := &o.Health
	h.Path = cmp.Or(h.Path, "/healthz")
	h.Interval = cmp.Or(h.Interval, 5*time.Second)
	h.Timeout = cmp.Or(h.Timeout, 500*time.Millisecond)
	h.Threshold = cmp.Or(h.Threshold, 3)
	return o
}

// Channel reaches one application. All methods are safe for concurrent use.
type Channel struct {
	opts     Options
	target   string // host:port
	scheme   string
	carry    carrier
	gate     chan struct{} // one slot for each call in progress; nil = no limit
	inFlight atomic.Int64

	state  atomic.Pointer[condition]
	doubt  chan struct{} // a failed dial makes the prober check the port
	stop   context.CancelFunc
	wg     sync.WaitGroup
	opened sync.Once
	closed sync.Once

	saidUnsaved sync.Once // logs once that state and bindings in an answer to an event have no effect
}

// carrier sends a complete request to the application.
type carrier interface {
	http.RoundTripper
	probe(ctx context.Context, c *Channel) error
	takes(ctx context.Context, binding, path string) (bool, error)
	take(ctx context.Context, e event) ([]byte, error)
	close() error
}

// New returns a Channel. It does no I/O. It returns fault.Invalid for invalid options.
func New(o Options) (*Channel, error) {
	o = o.withDefaults()
	if o.Port < 1 || o.Port > 65535 {
		return nil, fault.New(fault.Invalid, "appchannel.New",
			fmt.Sprintf("the application's port %d is not a port", o.Port))
	}
	c := &Channel{opts: o, target: net.JoinHostPort(o.Address, strconv.Itoa(o.Port)), scheme: "http",
		doubt: make(chan struct{}, 1)}
	if o.MaxConcurrency > 0 {
		c.gate = make(chan struct{}, o.MaxConcurrency)
	}
	switch o.Protocol {
	case HTTP, H2C:
		c.carry = newHTTPCarrier(c, nil, protocols(c.opts.Protocol == HTTP, false, c.opts.Protocol == H2C))
	case HTTPS:
		c.scheme, c.carry = "https", newHTTPCarrier(c, appTLS(), protocols(true, true, false))
	case GRPC, GRPCS:
		if o.Protocol == GRPCS {
			c.scheme = "https"
		}
		g, err := newGRPCCarrier(c)
		if err != nil {
			return nil, err
		}
		c.carry = g
	default:
		return nil, fault.New(fault.Invalid, "appchannel.New",
			fmt.Sprintf("%q is not an application protocol", o.Protocol))
	}
	c.state.Store(&condition{why: "the application has not opened " + c.target + " yet"})
	return c, nil
}

// appTLS returns the TLS settings for the connections to the application. With these settings, the node accepts any
// certificate, because the application runs beside the node and is called by its address.
func appTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} // #nosec G402 -- see above
}

// Open starts the prober and returns at once.
func (c *Channel) Open() {
	c.opened.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		c.stop = cancel
		c.wg.Go(func() { c.watch(ctx) })
	})
}

// Close stops the prober and closes idle connections. Calls in progress continue. Close is idempotent.
func (c *Channel) Close() error {
	var err error
	c.closed.Do(func() {
		if c.stop != nil {
			c.stop()
		}
		c.wg.Wait()
		err = c.carry.close()
	})
	return err
}

// Target returns the host:port of the application.
func (c *Channel) Target() string { return c.target }

// Protocol returns the protocol of the application.
func (c *Channel) Protocol() Protocol { return c.opts.Protocol }

// InFlight returns how many calls are in progress or waiting.
func (c *Channel) InFlight() int { return int(c.inFlight.Load()) }

// condition is the last known state of the application.
type condition struct {
	seen    bool // the port of the application was open at least once
	healthy bool
	why     string // why the application is not healthy
}

// Seen reports whether the application's port has ever been open.
func (c *Channel) Seen() bool { return c.state.Load().seen }

// Healthy reports whether the application accepts calls. If it does not, the second result is the reason.
func (c *Channel) Healthy() (bool, string) {
	s := c.state.Load()
	return s.healthy, s.why
}
