// Package connlimit limits the number of connections of one listener. It owns the count of the connections. If there
// are too many, it closes the connection that has been idle longest. It has no goroutines.
package connlimit

import (
	stdlist "container/list"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The default limits of a listener: the number of connections, and the stall time of Impatient.
const (
	DefaultMax        = 8192
	DefaultWriteStall = time.Minute
)

// Options configure a Limiter. Logger is required.
type Options struct {
	Max    int                // connections; 0 = DefaultMax
	Open   prometheus.Gauge   // open connections; several limiters may share it; nil = not measured
	Cut    prometheus.Counter // connections closed at the limit; nil = not measured
	Logger *slog.Logger
}

// Limiter limits the number of connections of one listener. If a new connection exceeds the limit, the Limiter closes
// the connection that has been idle longest. If all older connections have a request in progress, it closes the new
// one. So a client cannot keep other clients out with idle connections. A Limiter is safe for concurrent use.
type Limiter struct {
	o Options

	mu    sync.Mutex // guards what follows
	total int
	idle  stdlist.List // of net.Conn, longest idle first
	conns map[net.Conn]*member
	said  time.Time // when the bound was last logged
}

// member is an open connection.
type member struct {
	requests int              // number of requests in progress
	waiting  *stdlist.Element // element in Limiter.idle; nil = the connection has requests, or is being closed
	closing  bool             // the connection was closed at the limit
	leaving  bool             // the connection ends with its requests
}

// New creates an empty Limiter.
func New(o Options) *Limiter {
	if o.Max <= 0 {
		o.Max = DefaultMax
	}
	return &Limiter{o: o, conns: map[net.Conn]*member{}}
}

// sayBound is the minimum time between two warnings about the limit.
const sayBound = time.Minute

// Join adds a new connection that has no request yet. If there are too many connections, Join closes one of them,
// possibly c itself. The server must call Leave when the connection has ended, even if Join closed it.
func (w *Limiter) Join(c net.Conn) {
	surplus, say := w.join(c)
	if surplus == nil {
		return
	}
	_ = surplus.Close() // the server of the connection notices this
	if w.o.Cut != nil {
		w.o.Cut.Inc()
	}
	if say {
		w.o.Logger.Warn("too many connections: those without a request are closed", "bound", w.o.Max, "listener",
			c.LocalAddr().String())
	}
}

// join adds the connection c. If there are now too many connections, it returns the one that has been idle longest, and
// the caller must close it. Otherwise surplus is nil. say is true if the caller should log a warning.
func (w *Limiter) join(c net.Conn) (surplus net.Conn, say bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grow(1)
	w.conns[c] = &member{waiting: w.idle.PushBack(c)}
	if w.total <= w.o.Max {
		return nil, false
	}
	surplus = w.idle.Front().Value.(net.Conn) // never nil: the new connection is in the list
	m := w.conns[surplus]
	w.stir(m)
	m.closing = true
	now := time.Now()
	if say = now.Sub(w.said) >= sayBound; say {
		w.said = now
	}
	return surplus, say
}

// Busy records that a connection has one more request. It has no effect after Leave.
func (w *Limiter) Busy(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m := w.conns[c]; m != nil {
		m.requests++
		w.stir(m)
	}
}

// Idle records that a request of a connection has ended. It has no effect after Leave.
func (w *Limiter) Idle(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.conns[c]
	if m == nil {
		return
	}
	switch m.requests--; {
	case m.requests > 0:
	case m.leaving:
		w.leaveLocked(c)
	case !m.closing:
		m.waiting = w.idle.PushBack(c)
	}
}

// Leave records that a connection has ended.
func (w *Limiter) Leave(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaveLocked(c)
}

// LeaveWithRequests is like Leave, but takes effect when the last request in progress on the connection has ended. For
// example, an upgraded connection ends when the handler of its request returns.
func (w *Limiter) LeaveWithRequests(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.conns[c]
	if m == nil {
		return
	}
	if m.leaving = true; m.requests == 0 {
		w.leaveLocked(c)
	}
}

func (w *Limiter) leaveLocked(c net.Conn) {
	if m := w.conns[c]; m != nil {
		w.stir(m)
		delete(w.conns, c)
		w.grow(-1)
	}
}

func (w *Limiter) grow(by int) {
	w.total += by
	if w.o.Open != nil {
		w.o.Open.Add(float64(by))
	}
}

// stir removes a connection from the idle list.
func (w *Limiter) stir(m *member) {
	if m.waiting != nil {
		w.idle.Remove(m.waiting)
		m.waiting = nil
	}
}
