package atmostonce

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Client sends requests over HTTP/1.1 without TLS, each at most once. It is faster than http.Transport, which has two
// goroutines for each connection and has to wake both for every request. A Client sends the request and reads the head
// of the answer in the goroutine of the caller. Only the body of a request is sent by another goroutine.
//
// A Client is safe for concurrent use. The caller must close it.
type Client struct {
	transport *http.Transport
	limits    Limits

	mu     sync.Mutex         // guards what follows
	idle   map[string][]*link // by host; the most recently used is the last
	sweep  *time.Timer        // closes links that are idle for too long; nil = there are no idle links
	closed bool
}

// NewClient returns a Client with the dial function, the buffer sizes and the limits of t. The caller must have
// prepared t with the function Transport. The Client keeps at most t.MaxIdleConnsPerHost idle connections to each host.
// It sends requests with the header Expect over t.
func NewClient(t *http.Transport, l Limits) *Client {
	return &Client{transport: t, limits: l, idle: map[string][]*link{}}
}

// RoundTrip sends r and returns the same results as the function RoundTrip of this package. It calls no httptrace
// hooks, except for a request with the header Expect, and on systems where noticesEnd is false.
func (c *Client) RoundTrip(r *http.Request) (answer *http.Response, wasSent bool, err error) {
	if !noticesEnd || len(r.Header["Expect"]) > 0 {
		return RoundTrip(c.transport, r, c.limits)
	}
	for {
		l, used, err := c.link(r.Context(), r.URL)
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // as http.RoundTripper requires
			}
			return nil, false, err
		}
		answer, wasSent, err := c.exchange(l, r)
		if err == nil || wasSent || !used || !bodiless(r) || r.Context().Err() != nil {
			return answer, wasSent, err
		}
	}
}

// bodiless reports whether a request has no body. Only such a request can be sent again on another connection.
func bodiless(r *http.Request) bool { return r.Body == nil || r.Body == http.NoBody }

// link returns a connection to the host of u. If there is an idle connection, link returns that one, and used is true.
// Otherwise link opens a new connection, and used is false.
func (c *Client) link(ctx context.Context, u *url.URL) (l *link, used bool, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, false, err
	}
	for {
		l := c.take(u.Host)
		if l == nil {
			break
		}
		if !unusable(l.conn.Conn) {
			return l, true, nil
		}
		l.close()
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	conn, err := c.transport.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, err
	}
	return newLink(conn.(*counted), u.Host, c.transport), false, nil
}

// take removes the most recently used idle connection to host from the list and returns it. It returns nil if there is
// none, or if all have been idle for too long.
func (c *Client) take(host string) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[host]
	n := len(list) - 1
	if n < 0 || time.Since(list[n].idleSince) >= c.transport.IdleConnTimeout {
		return nil // the other links have been idle for even longer
	}
	l := list[n]
	list[n] = nil
	c.idle[host] = list[:n]
	return l
}

// put keeps a connection for the next request. If the Client is closed or has enough idle connections to the host, put
// closes the connection.
func (c *Client) put(l *link) {
	if !c.keep(l) {
		l.close()
	}
}

func (c *Client) keep(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle[l.host]) >= c.transport.MaxIdleConnsPerHost {
		return false
	}
	l.idleSince = time.Now()
	c.idle[l.host] = append(c.idle[l.host], l)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(c.transport.IdleConnTimeout, c.closeUnused)
	}
	return true
}

// closeUnused closes the connections that have been idle for too long.
func (c *Client) closeUnused() {
	for _, l := range c.unused() {
		l.close()
	}
}

// unused returns the connections that have been idle for too long, and removes them from the list. If other connections
// are left in the list, unused starts the timer again.
func (c *Client) unused() (out []*link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, next := time.Now(), time.Duration(math.MaxInt64)
	for host, list := range c.idle {
		n := 0
		for n < len(list) && now.Sub(list[n].idleSince) >= c.transport.IdleConnTimeout {
			n++
		}
		out = append(out, list[:n]...)
		if list = append([]*link(nil), list[n:]...); len(list) == 0 {
			delete(c.idle, host)
			continue
		}
		c.idle[host] = list
		next = min(next, c.transport.IdleConnTimeout-now.Sub(list[0].idleSince))
	}
	if c.sweep = nil; len(c.idle) > 0 {
		c.sweep = time.AfterFunc(next, c.closeUnused)
	}
	return out
}

// Close closes the idle connections. A connection in use is closed when its request ends. After Close, the Client can
// still send requests, but it opens a new connection for each of them.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	idle := c.idle
	c.idle = map[string][]*link{}
	if c.sweep != nil {
		c.sweep.Stop()
	}
	c.mu.Unlock()
	for _, list := range idle {
		for _, l := range list {
			l.close()
		}
	}
	c.transport.CloseIdleConnections()
}
