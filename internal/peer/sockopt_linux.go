package peer

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tcpNotSentLowat = 25 // TCP_NOTSENT_LOWAT, which package syscall does not name
	unsent          = 128 << 10
)

// limitUnsent limits how much unsent data the kernel buffers for a connection. With a large buffer, a small message
// could wait behind megabytes of a large message.
func limitUnsent(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsent)
	})
}

// manyRepeats is the number of retransmissions after which a network failure is likely. A single lost packet causes
// fewer retransmissions.
const manyRepeats = 3

// unheard returns the time since the other side last acknowledged data on c. It returns 0 if all data is
// acknowledged, or if there were fewer than manyRepeats retransmissions.
func unheard(c *net.TCPConn) time.Duration {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	if raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}) != nil || err != nil {
		return 0
	}
	if info.Unacked == 0 || info.Retransmits < manyRepeats {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}
