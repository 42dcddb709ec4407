//go:build unix && !aix

package atmostonce

import (
	"errors"
	"net"
	"syscall"
)

// ended reports whether the kernel knows that the other side has closed the connection. It reads no bytes, so another
// goroutine may call Read at the same time. It returns false if there are unread bytes before the end, such as a TLS
// close_notify.
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
		return false // the write will fail
	}
	// Control, since Read would wait for the reader.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) //nolint:gosec // small
		yes = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return yes || err != nil
}
