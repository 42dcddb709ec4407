package peer

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/sendonce"
)

// The bounds of connections to one node.
const (
	idleConnections = 128
	idleTimeout     = 90 * time.Second // below that of the handler, so that this side closes first
	continueTimeout = time.Second
)

// Dial opens a connection to a server by its id.
type Dial func(ctx context.Context, server string) (net.Conn, error)

// Client carries calls to other nodes. Safe for concurrent use.
type Client struct {
	transport *http.Transport
	self      func() netip.Addr
}

// NewClient makes a Client. self is the address under which other nodes know this one, for
// the application called; not valid as long as there is none.
func NewClient(dial Dial, self func() netip.Addr) *Client {
	connect := func(ctx context.Context, _, addr string) (net.Conn, error) {
		server, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fault.Wrap(err, "api.peer", "a server id is no address")
		}
		return dial(ctx, server)
	}
	return &Client{self: self, transport: &http.Transport{
		DialContext: sendonce.Dialer(connect), DisableCompression: true, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout,
		ExpectContinueTimeout: continueTimeout, WriteBufferSize: 16 << 10, ReadBufferSize: 16 << 10,
	}}
}

// Close cuts idle connections. Calls under way go on.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Carry takes a call to the callee at a place.
func (c *Client) Carry(at *api.Place, in *api.Inbound) (api.Answer, error) {
	r := in.Request
	r.URL = wireURL(at.Server, r.URL)
	r.Host = at.Server
	c.address(in)
	answer, sent, err := sendonce.RoundTrip(c.transport, r)
	if err != nil {
		return api.Answer{}, c.failed(at, sent, r.Context(), err)
	}
	if text := first(answer.Header, headerFault); text != "" {
		_ = answer.Body.Close() // it is empty
		err := decodeFault(text)
		return api.Answer{}, fault.Wrap(err, "api.peer", "node "+at.Node)
	}
	session := first(answer.Header, headerSession)
	delete(answer.Header, headerSession)
	return api.Answer{Response: answer, Session: session}, nil
}

// address says in headers whom the call is for and from, for the node, and how it came,
// for the application.
func (c *Client) address(in *api.Inbound) {
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

// hostOf is an address as a host is written.
func hostOf(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// quoted is an address as a value of the header Forwarded.
func quoted(a netip.Addr) string {
	if a.Is6() {
		return `"` + hostOf(a) + `"` // a colon is no part of a token
	}
	return a.String()
}

// appended adds to a list header without changing what others hold.
func appended(values []string, v string) []string {
	if len(values) == 0 {
		return []string{v}
	}
	last := values[len(values)-1]
	return append(append([]string(nil), values[:len(values)-1]...), last+", "+v)
}

func (c *Client) failed(at *api.Place, sent bool, ctx context.Context, err error) error { //nolint:revive // the context is what is asked about
	switch {
	case !sent && ctx.Err() == nil:
		return &fault.Error{Code: fault.Unavailable, Op: "api.peer", Msg: "node " + at.Node + " cannot be reached", Err: inner(err)}
	case !sent:
		return &fault.Error{Code: fault.Timeout, Op: "api.peer", Msg: "the call ended before node " + at.Node + " was reached", Err: context.Cause(ctx)}
	}
	return &fault.Error{Code: fault.Indeterminate, Op: "api.peer", Msg: "node " + at.Node + " did not answer", Err: inner(err)}
}

// inner prefers what the peer port says over what net/http puts around it.
func inner(err error) error {
	if f, ok := fault.As(err); ok {
		return f
	}
	return err
}
