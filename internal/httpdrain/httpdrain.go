// Package httpdrain shuts an http.Server down without waiting for connections that have no request. It owns the
// record of these connections, and closes them. It has no goroutines.
package httpdrain

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Drain shuts one http.Server down. Shutdown immediately closes new connections that have no request yet.
// http.Server.Shutdown alone would wait some seconds for such connections. A Drain is safe for concurrent use.
type Drain struct {
	server *http.Server

	mu      sync.Mutex // guards what follows
	closing bool
	unused  map[net.Conn]*conn    // new connections, until their first request head is complete
	busy    map[net.Conn]struct{} // connections with a request, until its answer is sent
}

// conn is a connection of the server.
type conn struct {
	closed atomic.Bool // the Drain has closed the connection, because it had no request
}

type connKey struct{}

// Attach returns a Drain for the server s, which must not serve yet. It wraps the handler and the hooks of s, so the
// caller must set the handler and the hooks before the call.
func Attach(s *http.Server) *Drain {
	d := &Drain{server: s, unused: map[net.Conn]*conn{}, busy: map[net.Conn]struct{}{}}
	state, connContext, handler := s.ConnState, s.ConnContext, s.Handler
	s.ConnState = func(c net.Conn, to http.ConnState) {
		if state != nil {
			state(c, to)
		}
		d.follow(c, to)
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if connContext != nil {
			ctx = connContext(ctx, c)
		}
		return context.WithValue(ctx, connKey{}, d.add(c))
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok && c.closed.Load() {
			panic(http.ErrAbortHandler) // Shutdown has closed the connection, so the answer would be lost
		}
		handler.ServeHTTP(w, r)
	})
	return d
}

func (d *Drain) add(c net.Conn) *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	added := &conn{}
	d.unused[c] = added
	return added
}

// follow records the new state of a connection. If the connection arrived after Shutdown, follow closes it. net/http
// calls follow at each change, as http.Server.ConnState.
func (d *Drain) follow(c net.Conn, to http.ConnState) {
	if d.record(c, to) {
		_ = c.Close() // net/http notices the closed connection
	}
}

// record records the new state of a connection. It returns true if the connection arrived after Shutdown and must be
// closed.
func (d *Drain) record(c net.Conn, to http.ConnState) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch to {
	case http.StateNew:
		if u := d.unused[c]; u != nil && d.closing {
			u.closed.Store(true)
			return true
		}
	case http.StateActive:
		delete(d.unused, c)
		d.busy[c] = struct{}{}
	case http.StateIdle:
		delete(d.busy, c)
	case http.StateHijacked, http.StateClosed:
		delete(d.unused, c)
		delete(d.busy, c)
	}
	return false
}

// Shutdown stops accepting, closes the connections without a request, and waits for requests in progress. If ctx ends
// while a request is in progress, it returns the error of ctx, and the request continues until the server is closed.
func (d *Drain) Shutdown(ctx context.Context) error {
	for _, c := range d.begin() {
		_ = c.Close() // net/http notices the closed connection
	}
	err := d.server.Shutdown(ctx)
	if err != nil && !d.serves() {
		return nil
	}
	return err
}

// begin returns the connections that Shutdown must close. From then on, record returns true for each new connection.
func (d *Drain) begin() []net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = true
	var out []net.Conn
	for c, u := range d.unused {
		u.closed.Store(true)
		out = append(out, c)
	}
	return out
}

// serves reports whether a request is being served.
func (d *Drain) serves() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.busy) > 0
}
