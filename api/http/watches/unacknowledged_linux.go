package watches

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes the kernel close a TCP connection whose other side acknowledges no data for longer than
// limit. For example, the other host has failed. Without this limit, the kernel gives up after about 15 minutes, or
// never.
func limitUnacknowledged(fd uintptr, limit time.Duration) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
}
