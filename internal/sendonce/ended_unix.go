//go:build unix && !aix

package sendonce

import (
	"errors"
	"net"
	"syscall"
)

// ended reports whether the other side has ended a connection and the kernel knows it. It
// takes no bytes; a reader may wait on the connection meanwhile. An end behind bytes that
// nobody has read yet, as the farewell of TLS, is not seen.
func ended(c net.Conn) bool {
	for {
		switch t := c.(type) {
		case syscall.Conn:
			return hungUp(t)
		case interface{ NetConn() net.Conn }: // as tls.Conn
			c = t.NetConn()
		default:
			return false
		}
	}
}

func hungUp(c syscall.Conn) (yes bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false // the write will tell
	}
	// Control, since Read would wait for the reader.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) //nolint:gosec // descriptors are small
		yes = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return yes || err != nil
}
