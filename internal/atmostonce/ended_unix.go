//go:build unix && !aix

package atmostonce

import (
	"errors"
	"net"
	"syscall"
)

// noticesEnd reports whether the functions ended and unusable work on this operating system.
const noticesEnd = true

// ended reports whether the kernel knows that the other side has closed the connection. It returns false while there
// are unread bytes, such as a TLS close_notify. It reads no bytes, so another goroutine may call Read at the same
// time.
func ended(c net.Conn) bool {
	_, over := peek(c)
	return over
}

// unusable reports whether an idle connection must not be used for another request. This is the case if the other side
// has closed the connection, or has sent bytes although no request was in progress.
func unusable(c net.Conn) bool {
	unread, over := peek(c)
	return unread || over
}

// peek looks at the receive queue of the socket below c. unread is true if the queue has bytes. closed is true if the
// queue is empty and the connection has ended or failed. Both are false if c has no socket.
func peek(c net.Conn) (unread, closed bool) {
	for {
		switch t := c.(type) {
		case syscall.Conn:
			return peekSocket(t)
		case interface{ NetConn() net.Conn }: // for example a *tls.Conn
			c = t.NetConn()
		default:
			return false, false
		}
	}
}

func peekSocket(c syscall.Conn) (unread, over bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, false // the write will fail
	}
	// This uses raw.Control, because raw.Read would wait for the goroutine that reads.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) //nolint:gosec // small
		unread = n > 0
		over = n == 0 && err == nil ||
			err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return unread, over || err != nil
}
