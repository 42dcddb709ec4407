// Package frames limits how much memory a server can make a client library allocate.
//
// A database server announces the length of a message or a value before it sends the bytes. Client libraries allocate
// this much memory before the bytes arrive. So a Conn checks each message first, and passes a large message to the
// library only when it has arrived completely. It checks the content of a message only where a library would otherwise
// panic or misread what follows.
//
// The package owns these checks for several protocols. It starts no goroutines.
package frames

import (
	"net"
	"slices"
	"sync"
	"syscall"
)

// Checker checks the bytes that a server sends. Its methods are not called concurrently.
type Checker interface {
	// Check checks newly received bytes. They are the last bytes of unseen, and fresh is their number. The bytes before
	// them in unseen were held by earlier calls. Check returns how many bytes at the end of unseen the client must not
	// see yet, because they belong to a message that is not complete. Check returns an error for a message that is
	// malformed or too large. It is not called again after an error.
	Check(unseen []byte, fresh int) (held int, err error)
	// Sent is called before bytes are sent to the server.
	Sent(p []byte)
}

const (
	freeBytes = 64 << 10 // a longer message is held until it is complete

	minRead = 4 << 10   // minimum bytes that a read requests while bytes are held
	maxRead = 256 << 10 // maximum bytes that a read requests while bytes are held
)

// Conn is a connection that passes only checked bytes to its reader. After an error of the check, every read returns
// this error. As with any net.Conn, one goroutine may read while another writes.
type Conn struct {
	net.Conn
	unread []byte // received and checked; only the first bytes may be passed
	ready  int    // number of bytes at the start of unread that may be passed
	failed error

	mu    sync.Mutex // guards check, which a reader and a writer use
	check Checker
}

// Wrap returns a connection whose reader sees only bytes that c has checked. The connection implements syscall.Conn if
// conn does, because client libraries use syscall.Conn to detect broken connections.
func Wrap(conn net.Conn, c Checker) net.Conn {
	wrapped := &Conn{Conn: conn, check: c}
	if raw, ok := conn.(syscall.Conn); ok {
		return direct{wrapped, raw}
	}
	return wrapped
}

type direct struct {
	*Conn
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (d direct) SyscallConn() (syscall.RawConn, error) { return d.raw.SyscallConn() }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	for c.ready == 0 && len(p) > 0 {
		if c.failed != nil {
			return 0, c.failed
		}
		if len(c.unread) == 0 { // the usual case: nothing is copied
			n, err := c.Conn.Read(p)
			if n, c.failed = c.inspect(p[:n]); c.failed != nil {
				continue
			}
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		c.unread = slices.Grow(c.unread, min(max(len(c.unread), minRead), maxRead))
		n, err := c.Conn.Read(c.unread[len(c.unread):cap(c.unread)])
		if err := c.more(n); err != nil {
			continue
		}
		if c.ready == 0 && err != nil {
			return 0, err
		}
	}
	n := copy(p, c.unread[:c.ready])
	c.ready -= n
	if c.unread = c.unread[n:]; len(c.unread) == 0 {
		c.unread = nil
	}
	return n, nil
}

// inspect checks the bytes p, which were read while c.unread was empty. It returns how many bytes at the start of p the
// reader may see now. It keeps the other bytes in c.unread, because they belong to an incomplete message.
func (c *Conn) inspect(p []byte) (int, error) {
	held, err := c.checked(p, len(p))
	if err != nil || held == 0 {
		return len(p), err
	}
	c.unread = slices.Clone(p[len(p)-held:])
	return len(p) - held, nil
}

// more adds n bytes, which have been read into the buffer of c.unread, to c.unread, and checks them.
func (c *Conn) more(n int) error {
	c.unread = c.unread[:len(c.unread)+n]
	held := 0
	held, c.failed = c.checked(c.unread, n)
	if c.failed != nil {
		c.unread = nil
		return c.failed
	}
	c.ready = len(c.unread) - held
	return nil
}

func (c *Conn) checked(unseen []byte, fresh int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.check.Check(unseen, fresh)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.check.Sent(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// Error is the error of a failed check. It is not a *fault.Error, because the fault code depends on the request that
// the client sent.
type Error struct {
	TooLarge bool // false = the message is malformed
	text     string
}

// Error returns the text.
func (e *Error) Error() string { return e.text }

// tooLarge returns the error for a message above a bound.
func tooLarge(text string) error { return &Error{TooLarge: true, text: text} }

// malformed returns the error for a message that breaks the protocol.
func malformed(text string) error { return &Error{text: text} }
