//go:build !linux

package peer

import (
	"net"
	"time"
)

// limitUnsent does nothing here: small messages may queue behind what the kernel buffers.
func limitUnsent(*net.TCPConn) {}

// unheard is not known here: tunnels end when the kernel gives them up.
func unheard(*net.TCPConn) time.Duration { return 0 }
