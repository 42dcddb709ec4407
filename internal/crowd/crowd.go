// Package crowd bounds the connections of one listener.
//
// It owns the count and the choice of who has to go: of those without a request, the one
// that has been so for longest. It must never know what is spoken on a connection. It has
// no goroutines.
package crowd

import (
	stdlist "container/list"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The bounds of listeners that name none.
const (
	DefaultMax        = 8192
	DefaultWriteStall = time.Minute
)

// Options are what a Crowd is made of.
type Options struct {
	Max    int                // connections; 0 = DefaultMax
	Open   prometheus.Gauge   // how many are open; several crowds may share it; nil = not measured
	Cut    prometheus.Counter // those that were one too many; nil = not measured
	Logger *slog.Logger
}

// Crowd bounds the connections of one listener. One too many closes the one that has been
// without a request for longest, be it new or kept alive, so that nobody keeps others out
// by opening connections and saying nothing. If all carry requests, the newcomer goes.
// Safe for concurrent use.
type Crowd struct {
	o Options

	mu    sync.Mutex // guards what follows
	total int
	idle  stdlist.List // of net.Conn, the longest idle first
	at    map[net.Conn]*stdlist.Element
	said  time.Time // when the bound was last logged
}

// New makes an empty Crowd.
func New(o Options) *Crowd {
	if o.Max <= 0 {
		o.Max = DefaultMax
	}
	return &Crowd{o: o, at: map[net.Conn]*stdlist.Element{}}
}

// sayBound is how long a bound that was logged stays unsaid.
const sayBound = time.Minute

// Join takes a new connection in, without a request, and closes one if there are too many:
// perhaps the new one. Whoever serves a connection tells of its end with Leave, also if it
// was closed here.
func (w *Crowd) Join(c net.Conn) {
	surplus, say := w.join(c)
	if surplus == nil {
		return
	}
	_ = surplus.Close() // whoever serves it finds out
	if w.o.Cut != nil {
		w.o.Cut.Inc()
	}
	if say {
		w.o.Logger.Warn("too many connections: those without a request are closed", "bound", w.o.Max, "listener", c.LocalAddr().String())
	}
}

// join keeps count, and returns the connection to close, if there is one too many.
func (w *Crowd) join(c net.Conn) (surplus net.Conn, say bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grow(1)
	w.wait(c)
	if w.total <= w.o.Max {
		return nil, false
	}
	surplus = w.idle.Front().Value.(net.Conn) // the newcomer is there, if nobody else
	w.stir(surplus)
	now := time.Now()
	if say = now.Sub(w.said) >= sayBound; say {
		w.said = now
	}
	return surplus, say
}

// Busy says that a connection carries a request.
func (w *Crowd) Busy(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stir(c)
}

// Idle says that a connection carries no request any more.
func (w *Crowd) Idle(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stir(c)
	w.wait(c)
}

// Leave says that a connection has ended. It is called once for each.
func (w *Crowd) Leave(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stir(c)
	w.grow(-1)
}

func (w *Crowd) grow(by int) {
	w.total += by
	if w.o.Open != nil {
		w.o.Open.Add(float64(by))
	}
}

func (w *Crowd) wait(c net.Conn) { w.at[c] = w.idle.PushBack(c) }

func (w *Crowd) stir(c net.Conn) {
	if e, ok := w.at[c]; ok {
		w.idle.Remove(e)
		delete(w.at, c)
	}
}

// Impatient gives every connection of a listener a bound on writes that make no progress:
// a client that does not read would hold its answer, and what serves it, for ever.
func Impatient(l net.Listener, stall time.Duration) net.Listener { return impatient{l, stall} }

type impatient struct {
	net.Listener
	stall time.Duration
}

func (l impatient) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stalling{Conn: c, stall: l.stall}, nil
}

// writePiece is how much must get through within the bound for a write to go on.
const writePiece = 64 << 10

type stalling struct {
	net.Conn
	stall time.Duration
}

func (c *stalling) Write(b []byte) (n int, err error) {
	for {
		_ = c.SetWriteDeadline(time.Now().Add(c.stall)) // if it fails, so does the write
		var m int
		m, err = c.Conn.Write(b[:min(len(b), writePiece)])
		b, n = b[m:], n+m
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}
