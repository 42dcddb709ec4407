package http

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/connlimit"
)

// takenOver are the connections that a Server has taken over from net/http, for answers that last long and are mostly
// idle. Such a connection needs neither the goroutine stacks nor the buffers of net/http.
type takenOver struct {
	life    context.Context // ends when requests in progress are aborted
	active  *active
	limiter *connlimit.Limiter

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

type takenOverKey struct{}

// takeOver takes the connection of a request over and calls serve in a new goroutine, after it has sent a head with
// status 200. The context of serve ends when the client closes the connection or the server aborts requests. takeOver
// returns false, and does nothing, if the request does not come from a Server over HTTP/1.1.
func takeOver(w http.ResponseWriter, r *http.Request, serve func(context.Context, net.Conn)) bool {
	t, _ := r.Context().Value(takenOverKey{}).(*takenOver)
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	if t == nil || c == nil || r.ProtoMajor != 1 || r.ProtoMinor != 1 || !t.add(c) {
		return false
	}
	head := appendHead(nil, w.Header())
	if _, _, err := http.NewResponseController(w).Hijack(); err != nil {
		t.remove(c)
		return false
	}
	t.limiter.Busy(c) // in addition to the request, which ends now
	go t.run(c, head, serve)
	return true
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

func (t *takenOver) run(c net.Conn, head []byte, serve func(context.Context, net.Conn)) {
	defer t.remove(c)
	defer t.limiter.Leave(c)
	ctx, cancel := context.WithCancel(t.life)
	defer cancel()
	read := make(chan struct{})
	go func() {
		defer close(read)
		awaitClose(c)
		cancel()
	}()
	if _, err := c.Write(head); err == nil {
		serve(ctx, c)
	}
	_ = c.Close() // the answer is complete, or the client has gone
	<-read
}

// awaitClose returns when the client has closed the connection. It discards what the client sends.
func awaitClose(c net.Conn) {
	b := make([]byte, 16)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// add counts a connection. It returns false if the server no longer serves requests.
func (t *takenOver) add(c net.Conn) bool {
	if !t.active.enter() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	return true
}

func (t *takenOver) remove(c net.Conn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	t.active.leave()
}

func (t *takenOver) has(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.conns[c]
	return ok
}

func (t *takenOver) none() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns) == 0
}

// closeAll closes all connections, so that their writes return.
func (t *takenOver) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		_ = c.Close() // its goroutine notices
	}
}

// A chunk is built in place: room for its size, the data, and its end. lastChunk ends the answer.
const (
	chunkRoom = "00000000\r\n"
	chunkEnd  = "\r\n"
	lastChunk = "0\r\n\r\n"
)

// finishChunk completes a chunk that begins with chunkRoom.
func finishChunk(b []byte) []byte {
	const digits = "0123456789abcdef"
	for n, i := len(b)-len(chunkRoom), len(chunkRoom)-3; i >= 0; n, i = n>>4, i-1 {
		b[i] = digits[n&15]
	}
	return append(b, chunkEnd...)
}

// headerLine keeps a value of a header on one line.
var headerLine = strings.NewReplacer("\r", " ", "\n", " ")
