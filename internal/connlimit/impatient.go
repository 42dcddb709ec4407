package connlimit

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	writePiece  = 64 << 10        // maximum bytes of one write, which must end within the stall time
	lingerTime  = 5 * time.Second // maximum time during which the rest of a request is discarded
	lingerBytes = 64 << 20        // maximum bytes of the rest that are discarded
)

// Impatient returns a listener that accepts from l. On its connections, a write fails if the client does not accept a
// piece of up to 64 KiB within the time stall. So a client that does not read its answer cannot occupy memory and a
// goroutine forever.
//
// The connections have a method CloseWrite. net/http calls it before it closes a connection on which a part of the
// request is unread, for example because the body is too large. CloseWrite discards this part for a limited time.
// Otherwise the kernel would reset the connection, and most clients would lose the answer.
func Impatient(l net.Listener, stall time.Duration) net.Listener {
	return &impatient{Listener: l, stall: stall, lingering: map[*stalling]struct{}{}}
}

type impatient struct {
	net.Listener
	stall time.Duration

	mu        sync.Mutex // guards what follows
	closed    bool
	lingering map[*stalling]struct{}
}

func (l *impatient) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stalling{Conn: c, listener: l}, nil
}

// Close closes the listener. It also makes the running calls of CloseWrite return, so that a stop does not wait for
// them.
func (l *impatient) Close() error {
	l.mu.Lock()
	l.closed = true
	for c := range l.lingering {
		_ = c.SetReadDeadline(time.Now()) // SetReadDeadline does no I/O
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// begin is called before CloseWrite discards what arrives on c. It sets a read deadline, so that CloseWrite discards
// bytes for at most lingerTime. It returns false if the listener is closed or the deadline cannot be set.
func (l *impatient) begin(c *stalling) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return false
	}
	l.lingering[c] = struct{}{}
	return true
}

func (l *impatient) end(c *stalling) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lingering, c)
}

type stalling struct {
	net.Conn
	listener *impatient
}

// NetConn returns the underlying connection, on which writes have no time limit.
func (c *stalling) NetConn() net.Conn { return c.Conn }

func (c *stalling) Write(b []byte) (n int, err error) {
	for {
		_ = c.SetWriteDeadline(time.Now().Add(c.listener.stall)) // if this fails, the write fails too
		var m int
		m, err = c.Conn.Write(b[:min(len(b), writePiece)])
		b, n = b[m:], n+m
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

// CloseWrite closes the sending side of the connection. It then discards what the client still sends, until the
// client closes the connection, or until a bound of bytes or time is reached.
func (c *stalling) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		return err
	}
	if !c.listener.begin(c) {
		return nil
	}
	defer c.listener.end(c)
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes) // ends with the client, or at a bound
	return nil
}
