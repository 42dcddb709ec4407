//go:build !linux

package peer

import (
	"net"
	"time"
)

// limitUnsent does nothing on this system, so small messages may queue behind the data in the kernel's buffer.
func limitUnsent(*net.TCPConn) {}

// unheard returns 0, because this system does not report acknowledgements. A tunnel without acknowledgements ends
// only when the kernel closes the connection.
func unheard(*net.TCPConn) time.Duration { return 0 }
