package remoteinvoke

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of connections to one node.
const (
	idleConnections = 128
	idleTimeout     = 90 * time.Second // less than the server's, so that the client closes first
	continueTimeout = time.Second
)

// Dial opens a connection to a server by its id.
type Dial func(ctx context.Context, server string) (net.Conn, error)

// Client sends calls to other nodes. It is safe for concurrent use.
type Client struct {
	dial      Dial
	self      func() netip.Addr
	transport atomic.Pointer[http.Transport]
}

// NewClient creates a Client. The function self returns the address at which other nodes reach this node; the address
// is invalid until it is known. A valid address is sent to the called application in forwarding headers.
func NewClient(dial Dial, self func() netip.Addr) *Client {
	c := &Client{dial: dial, self: self}
	c.transport.Store(c.newTransport())
	return c
}

func (c *Client) newTransport() *http.Transport {
	connect := func(ctx context.Context, _, addr string) (net.Conn, error) {
		server, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fault.Wrap(err, "api.peer", "a server id is no address")
		}
		return c.dial(ctx, server)
	}
	return &http.Transport{
		DialContext: atmostonce.Dialer(connect), DisableCompression: true, MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: continueTimeout, WriteBufferSize: 16 << 10, ReadBufferSize: 16 << 10,
	}
}

// Renew makes all further calls open new connections with the current certificate. Calls in progress continue on the
// old connections, which are closed afterwards.
func (c *Client) Renew() { c.transport.Swap(c.newTransport()).CloseIdleConnections() }

// Close closes idle connections. Calls in progress continue.
func (c *Client) Close() { c.transport.Load().CloseIdleConnections() }

// Carry sends a call to the node of an instance. It implements api.Carrier.
func (c *Client) Carry(at *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	r := in.Request
	r.URL = wireURL(at.Server, r.URL)
	r.Host = at.Server
	c.setRoutingHeaders(in)
	answer, sent, err := atmostonce.RoundTrip(c.transport.Load(), r)
	if err != nil {
		return invoke.Answer{}, c.failed(at, sent, r.Context(), err)
	}
	if text := first(answer.Header, headerFault); text != "" {
		_ = answer.Body.Close() // it is empty
		err := decodeFault(text)
		return invoke.Answer{}, fault.Wrap(err, "api.peer", "node "+at.Node)
	}
	session := first(answer.Header, headerSession)
	delete(answer.Header, headerSession)
	return invoke.Answer{Response: answer, Session: session}, nil
}

// setRoutingHeaders adds headers to the request of a call. From its own headers, the other node learns the target, the
// caller, the session and the remote address. From X-Forwarded-For, X-Forwarded-Host and Forwarded, the application
// learns the address of this node.
func (c *Client) setRoutingHeaders(in *invoke.Inbound) {
	h := in.Request.Header
	h[headerTarget] = []string{encodeApp(in.Target)}
	h[headerCaller] = []string{encodeApp(in.Caller.App)}
	if in.Session != "" {
		h[headerSession] = []string{in.Session}
	}
	if in.Remote != "" {
		h[headerRemote] = []string{in.Remote}
	}
	if at := c.self(); at.IsValid() {
		h["X-Forwarded-For"] = appended(h["X-Forwarded-For"], at.String())
		h["X-Forwarded-Host"] = []string{hostOf(at)}
		h["Forwarded"] = appended(h["Forwarded"], "for="+quoted(at)+";host="+quoted(at))
	}
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

// appended returns a copy of values in which ", " and v are appended to the last value. It does not change values.
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
	return &fault.Error{Code: fault.Indeterminate, Op: "api.peer", Msg: "node " + at.Node + " did not answer",
		Err: inner(err)}
}

// inner returns the error of the peer port without the layers of net/http, if there is one.
func inner(err error) error {
	if f, ok := fault.As(err); ok {
		return f
	}
	return err
}
