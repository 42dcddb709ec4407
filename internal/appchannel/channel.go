// Package appchannel is the way from the runtime to the application: it carries HTTP
// requests to its port, over HTTP/1.1, HTTP/2 without TLS, TLS, or as calls of the gRPC
// callback that applications of this API offer.
//
// It owns the connections to one application, the bound on calls at a time, the token the
// application asks for, and what is known of the application's health. It must never know
// who calls, other nodes, or the API. A Channel has one goroutine, the prober, from Open
// to Close.
package appchannel

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Protocol is how the application is called.
type Protocol string

// The protocols.
const (
	HTTP  Protocol = "http"
	HTTPS Protocol = "https"
	H2C   Protocol = "h2c"
	GRPC  Protocol = "grpc"
	GRPCS Protocol = "grpcs"
)

// Options say how to reach an application. Port and Logger are required.
type Options struct {
	Protocol       Protocol // default HTTP
	Address        string   // default 127.0.0.1
	Port           int
	MaxConcurrency int    // calls at a time, the rest wait; 0 or less = no limit
	Token          string // sent as dapr-api-token; empty = none
	Health         Health
	MaxMessage     int64 // bytes of a request to a gRPC application, and of its answer; default 4 MiB

	// OnHealth is told, from the prober, whenever the application begins or ceases to take
	// calls; nil = nobody. It must not block.
	OnHealth func(healthy bool)
	// OnLoad is told how many calls are in progress whenever that changes; nil = nobody. It
	// must not block.
	OnLoad func(inFlight int)
	Logger *slog.Logger
}

// Health says how the application is probed.
type Health struct {
	Enabled   bool          // else an application whose port is open is healthy
	Path      string        // of an HTTP application; default /healthz
	Interval  time.Duration // default 5 s
	Timeout   time.Duration // default 500 ms
	Threshold int           // failures in a row that make it unhealthy; default 3
}

func (o Options) withDefaults() Options {
	o.Protocol = cmp.Or(o.Protocol, HTTP)
	o.Address = cmp.Or(o.Address, "127.0.0.1")
	o.MaxMessage = cmp.Or(o.MaxMessage, 4<<20)
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
	gate     chan struct{} // a call in progress holds a place; nil = no bound
	inFlight atomic.Int64

	state  atomic.Pointer[condition]
	doubt  chan struct{} // a failed dial asks the prober to look
	stop   context.CancelFunc
	wg     sync.WaitGroup
	opened sync.Once
	closed sync.Once

	saidUnsaved sync.Once // a warning that is given once
}

// carrier sends a request that is complete to the application.
type carrier interface {
	http.RoundTripper
	probe(ctx context.Context, c *Channel) error
	takes(ctx context.Context, binding, path string) (bool, error)
	take(ctx context.Context, e event) ([]byte, error)
	close() error
}

// New makes a Channel. It does no I/O. The error is invalid.
func New(o Options) (*Channel, error) {
	o = o.withDefaults()
	if o.Port < 1 || o.Port > 65535 {
		return nil, fault.New(fault.Invalid, "appchannel.New", fmt.Sprintf("the application's port is %d, which is none", o.Port))
	}
	c := &Channel{opts: o, target: net.JoinHostPort(o.Address, strconv.Itoa(o.Port)), scheme: "http", doubt: make(chan struct{}, 1)}
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
		return nil, fault.New(fault.Invalid, "appchannel.New", fmt.Sprintf("%q is no protocol of an application", o.Protocol))
	}
	c.state.Store(&condition{why: "the application has not opened " + c.target + " yet"})
	return c, nil
}

// appTLS takes any certificate: the application is the node's neighbour, reached by address,
// and brings a certificate that nobody else vouches for.
func appTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // see above
}

// Open begins to look for the application and returns at once.
func (c *Channel) Open() {
	c.opened.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		c.stop = cancel
		c.wg.Go(func() { c.watch(ctx) })
	})
}

// Close ends the prober and cuts idle connections; calls under way go on. Idempotent.
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

// Target is the host:port of the application.
func (c *Channel) Target() string { return c.target }

// Protocol is how the application is called.
func (c *Channel) Protocol() Protocol { return c.opts.Protocol }

// InFlight is how many calls hold or wait for a place.
func (c *Channel) InFlight() int { return int(c.inFlight.Load()) }

// condition is what is known of the application.
type condition struct {
	seen    bool // its port was open at least once
	healthy bool
	why     string // it is not healthy
}

// Seen reports whether the application's port has ever been open.
func (c *Channel) Seen() bool { return c.state.Load().seen }

// Healthy reports whether the application takes calls, and why not.
func (c *Channel) Healthy() (bool, string) {
	s := c.state.Load()
	return s.healthy, s.why
}
