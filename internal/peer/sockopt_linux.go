package peer

import (
	"net"
	"syscall"
)

const (
	tcpNotSentLowat = 25 // TCP_NOTSENT_LOWAT, which package syscall does not name
	unsent          = 128 << 10
)

// limitUnsent keeps all but a little of what is not on the network yet out of the kernel's
// buffer, so that a small message never queues behind megabytes of a large one.
func limitUnsent(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsent)
	})
}
