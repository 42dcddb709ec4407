package watches

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes the kernel end a TCP connection if the other side acknowledges no data for the duration
// limit. The other host may be gone, or its process stopped. Without this limit, the kernel gives up after about 15
// minutes, or never.
func limitUnacknowledged(fd uintptr, limit time.Duration) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
}
