//go:build !linux

package peer

import (
	"net"
	"time"
)

// limitUnsent does nothing on this system, so small messages may wait behind the data in the kernel's buffer.
func limitUnsent(*net.TCPConn) {}

// unheard returns 0, because this system does not report acknowledgements. Therefore the port does not detect a tunnel
// whose other side no longer acknowledges data. Such a tunnel ends only when the kernel closes it.
func unheard(*net.TCPConn) time.Duration { return 0 }
