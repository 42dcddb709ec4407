package remoteinvoke

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of connections to one node.
const (
	idleConnections = 512              // kept, because opening a connection costs more than a call
	idleTimeout     = 90 * time.Second // less than the server's, so that the client closes first
	continueTimeout = time.Second
)

// Dial opens a connection to a server by its id.
type Dial func(ctx context.Context, server string) (net.Conn, error)

// The limits for what another node may add to the headers of an application's answer: bytes and header fields.
const (
	addedBytes  = 64 << 10
	addedFields = 100
)

// ClientConfig is the configuration of a Client. Dial and Self are required.
type ClientConfig struct {
	Dial Dial
	// Self returns the address at which other nodes reach this node, or the zero Addr while it is unknown. The client
	// writes this address into forwarding headers.
	Self    func() netip.Addr
	MaxHead int64             // bytes of the headers of an application's answer; 0 = atmostonce.DefaultMaxHead
	Memory  atmostonce.Memory // for the headers of answers; nil = no bound
}

// Client sends calls to other nodes. It is safe for concurrent use.
type Client struct {
	config ClientConfig
	own    atomic.Pointer[forwarding] // header values for the last address that config.Self returned; nil = none yet
	http   atomic.Pointer[atmostonce.Client]
}

// NewClient creates a Client.
func NewClient(config ClientConfig) *Client {
	config.MaxHead = cmp.Or(config.MaxHead, atmostonce.DefaultMaxHead)
	c := &Client{config: config}
	c.http.Store(c.newHTTP())
	return c
}

func (c *Client) newHTTP() *atmostonce.Client {
	connect := func(ctx context.Context, _, addr string) (net.Conn, error) {
		server, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fault.Wrap(err, "api.peer", "a server id is no address")
		}
		return c.config.Dial(ctx, server)
	}
	return atmostonce.NewClient(atmostonce.Transport(&http.Transport{
		DialContext: connect, DisableCompression: true, MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: continueTimeout, WriteBufferSize: 16 << 10, ReadBufferSize: 16 << 10,
		MaxResponseHeaderBytes: c.config.MaxHead + addedBytes,
	}), atmostonce.Limits{Fields: atmostonce.DefaultMaxFields + addedFields, Memory: c.config.Memory})
}

// Renew makes later calls use new connections, with the current certificate. The old connections are closed when their
// calls have ended.
func (c *Client) Renew() { c.http.Swap(c.newHTTP()).Close() }

// Close closes idle connections. Calls in progress continue.
func (c *Client) Close() { c.http.Load().Close() }

// Carry sends a call to the node of an instance. It implements invoke.Carrier.
func (c *Client) Carry(at *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	r := in.Request
	r.URL = wireURL(at.Server, r.URL)
	r.Host = at.Server
	c.setRoutingHeaders(in)
	answer, sent, err := c.http.Load().RoundTrip(r)
	if err != nil {
		return invoke.Answer{}, c.failed(at, sent, r.Context(), err)
	}
	if text := first(answer.Header, headerFault); text != "" {
		_ = answer.Body.Close() // the body is empty
		err := decodeFault(text)
		return invoke.Answer{}, fault.Wrap(err, "api.peer", "node "+at.Node)
	}
	session := first(answer.Header, headerSession)
	invoke.CleanAnswer(answer)
	return invoke.Answer{Response: answer, Session: session}, nil
}

// setRoutingHeaders adds headers to the request of a call:
//
//   - The Quorate- headers are for the other node. They name the target, the caller, the session, the method and the
//     caller's network address.
//   - X-Forwarded-For, X-Forwarded-Host and Forwarded are for the application. The address of this node is appended to
//     the values from the caller.
func (c *Client) setRoutingHeaders(in *invoke.Inbound) {
	h := in.Request.Header
	h[headerTarget] = []string{encodeApp(in.Target)}
	h[headerCaller] = []string{encodeApp(in.Caller.App)}
	if in.Session != "" {
		h[headerSession] = []string{in.Session}
	}
	if in.Method.Text != "" {
		h[headerMethod] = []string{url.PathEscape(in.Method.Text)}
	}
	if in.Remote != "" {
		h[headerRemote] = []string{in.Remote}
	}
	if at := c.config.Self(); at.IsValid() {
		own := c.own.Load()
		if own == nil || own.address != at {
			own = &forwarding{at, at.String(), hostOf(at), "for=" + quoted(at) + ";host=" + quoted(at)}
			c.own.Store(own)
		}
		h["X-Forwarded-For"] = appended(h["X-Forwarded-For"], own.text)
		h["X-Forwarded-Host"] = appended(h["X-Forwarded-Host"], own.host)
		h["Forwarded"] = appended(h["Forwarded"], own.forwarded)
	}
}

// forwarding holds a network address in the forms that the forwarding headers need.
type forwarding struct {
	address   netip.Addr
	text      string
	host      string
	forwarded string
}

// hostOf formats an address as the host of a URL.
func hostOf(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// quoted formats an address as a value of the header Forwarded.
func quoted(a netip.Addr) string {
	if a.Is6() {
		return `"` + hostOf(a) + `"` // a token cannot contain a colon
	}
	return a.String()
}

// appended returns a copy of values with ", " and v added to the last value. If values is empty, the result has only v.
func appended(values []string, v string) []string {
	if len(values) == 0 {
		return []string{v}
	}
	last := values[len(values)-1]
	return append(append([]string(nil), values[:len(values)-1]...), last+", "+v)
}

// nolint:revive // the function inspects the context
func (c *Client) failed(at *discovery.Instance, sent bool, ctx context.Context, err error) error {
	switch {
	case !sent && ctx.Err() == nil:
		return &fault.Error{Code: fault.Unavailable, Op: "api.peer", Msg: "node " + at.Node + " cannot be reached",
			Err: inner(err)}
	case !sent:
		return &fault.Error{Code: fault.Timeout, Op: "api.peer", Msg: "the call ended before node " + at.Node +
			" was reached", Err: context.Cause(ctx)}
	}
	if _, refused := errors.AsType[*atmostonce.BadAnswer](err); refused {
		return &fault.Error{Code: fault.Corrupt, Op: "api.peer", Msg: "the answer of node " + at.Node +
			" was refused", Err: err}
	}
	return &fault.Error{Code: fault.Indeterminate, Op: "api.peer", Msg: "node " + at.Node + " did not answer",
		Err: inner(err)}
}

// inner returns the *fault.Error that err wraps, or err itself if there is none. net/http wraps the errors of the peer
// port.
func inner(err error) error {
	if f, ok := fault.As(err); ok {
		return f
	}
	return err
}
