//go:build !linux

package peer

import "net"

// limitUnsent does nothing here: small messages may queue behind what the kernel buffers.
func limitUnsent(*net.TCPConn) {}
