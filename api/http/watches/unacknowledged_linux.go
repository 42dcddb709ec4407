package watches

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes the kernel close a TCP connection if data stays unacknowledged for longer than limit, for
// example because the other host has failed. By default, the kernel gives up after about 15 minutes, or never.
func limitUnacknowledged(fd uintptr, limit time.Duration) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
}
