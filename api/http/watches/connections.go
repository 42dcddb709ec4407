package watches

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/connlimit"
)

// Requests counts the requests in progress of a listener.
type Requests interface {
	Enter() bool // returns false if the listener serves no further requests
	Leave()
}

// Options describe the listener that connections belong to.
type Options struct {
	Life     context.Context // ends when requests in progress are aborted
	Requests Requests
	Limiter  *connlimit.Limiter
	Stall    time.Duration // after which a client that takes nothing is disconnected
	Logger   *slog.Logger
}

// Connections holds the connections that the watches of one listener have taken over from net/http. An idle connection
// needs no goroutine and no buffers of net/http. Connections is safe for concurrent use.
type Connections struct {
	requests Requests
	limiter  *connlimit.Limiter
	stall    time.Duration
	loop     *loop

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// NewConnections returns an empty set of connections for a listener. A goroutine runs only while there are watches.
func NewConnections(o Options) *Connections {
	return &Connections{requests: o.Requests, limiter: o.Limiter, stall: o.Stall, loop: newLoop(o.Life, o.Logger),
		conns: map[net.Conn]struct{}{}}
}

type (
	connectionsKey struct{} // key of *Connections in the context of a request
	connKey        struct{} // key of net.Conn in the context of a request
)

// WithConnections returns a copy of ctx that carries c. It is for the base context of a listener's requests. When a
// watch begins on this listener, its connection is moved from net/http to c.
func WithConnections(ctx context.Context, c *Connections) context.Context {
	return context.WithValue(ctx, connectionsKey{}, c)
}

// WithConn returns a context from which ConnOf returns the connection c.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// ConnOf returns the connection of a request, or nil.
func ConnOf(ctx context.Context) net.Conn {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	return c
}

// conn is a connection that was taken over from net/http. Call end when the watch has ended.
type conn struct {
	net.Conn // its writes fail if the client takes nothing for Options.Stall
	raw      syscall.RawConn
	owner    *Connections
	head     []byte // the head of the answer, sent before the body
}

// takeOver takes the connection of a request away from net/http, and adds it to the Connections of its listener. It
// returns nil and changes nothing in these cases:
//
//   - The request does not use HTTP/1.1.
//   - The connection has no file descriptor.
//   - The listener has no Connections (see WithConnections), or is closing.
func takeOver(w http.ResponseWriter, r *http.Request) *conn {
	t, _ := r.Context().Value(connectionsKey{}).(*Connections)
	c := ConnOf(r.Context())
	raw := rawOf(c)
	if t == nil || raw == nil || r.ProtoMajor != 1 || r.ProtoMinor != 1 || !t.add(c) {
		return nil
	}
	head := appendHead(nil, w.Header())
	if _, _, err := http.NewResponseController(w).Hijack(); err != nil {
		t.remove(c)
		return nil
	}
	boundBuffer(c)
	_ = raw.Control(func(fd uintptr) { limitUnacknowledged(fd, t.stall) }) // best effort: a stalled write also fails
	t.limiter.Busy(c)                                                      // beyond the end of the request
	return &conn{Conn: c, raw: raw, owner: t, head: head}
}

// sendBuffer is the size in bytes that is set for the send buffer of a connection. In this buffer, the kernel keeps
// data until the client has received it. Linux reserves twice the size.
const sendBuffer = 256 << 10

// boundBuffer sets the size of the send buffer to sendBuffer. By default, the kernel lets the buffer grow up to several
// MiB.
func boundBuffer(c net.Conn) {
	if inner, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = inner.NetConn()
	}
	if b, ok := c.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = b.SetWriteBuffer(sendBuffer) // the connection works with another size, too
	}
}

// rawOf returns the file descriptor of a connection, or nil.
func rawOf(c net.Conn) syscall.RawConn {
	if inner, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = inner.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// end closes the connection and stops counting it.
func (c *conn) end() {
	_ = c.Close() // the answer is complete, or the client has gone
	c.owner.limiter.Leave(c.Conn)
	c.owner.remove(c.Conn)
}

func appendHead(b []byte, h http.Header) []byte {
	b = append(b, "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nDate: "...)
	b = append(time.Now().UTC().AppendFormat(b, http.TimeFormat), "\r\n"...)
	for name, values := range h {
		if name == "Connection" || name == "Date" {
			continue
		}
		for _, v := range values {
			b = append(append(append(append(b, name...), ": "...), headerLine.Replace(v)...), "\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}

// add adds a connection and counts it as a request in progress. It returns false if the listener serves no further
// requests.
func (t *Connections) add(c net.Conn) bool {
	if !t.requests.Enter() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	return true
}

func (t *Connections) remove(c net.Conn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	t.requests.Leave()
}

// Has reports whether c was taken over and is still open.
func (t *Connections) Has(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.conns[c]
	return ok
}

// None reports whether no connection is open.
func (t *Connections) None() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns) == 0
}

// CloseSoon ends the watches whose clients have disconnected, without waiting for the next tick. From then on, each
// tick checks all clients and not only a part of them. The listener calls CloseSoon when it begins to close.
func (t *Connections) CloseSoon() { t.loop.closeSoon() }

// CloseAll closes all connections, so that blocked writes to the connections return.
func (t *Connections) CloseAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		_ = c.Close() // the goroutine that uses the connection gets an error
	}
}

// A chunk of the answer consists of chunkRoom, the data and chunkEnd. finishChunk overwrites the digits of
// chunkRoom with the size of the data. lastChunk ends the answer.
const (
	chunkRoom = "00000000\r\n"
	chunkEnd  = "\r\n"
	lastChunk = "0\r\n\r\n"
)

// beginChunk appends the room for the size of a chunk.
func beginChunk(b []byte) []byte { return append(b, chunkRoom...) }

// finishChunk completes the chunk in b[begin:]. If the chunk has no data, finishChunk removes it, because an empty
// chunk would end the answer.
func finishChunk(b []byte, begin int) []byte {
	const digits = "0123456789abcdef"
	n := len(b) - begin - len(chunkRoom)
	if n == 0 {
		return b[:begin]
	}
	for i := begin + len(chunkRoom) - 3; i >= begin; n, i = n>>4, i-1 {
		b[i] = digits[n&15]
	}
	return append(b, chunkEnd...)
}

// headerLine replaces the line breaks in a value of a header, so that the value stays on one line.
var headerLine = strings.NewReplacer("\r", " ", "\n", " ")
