//go:build !linux

package listen

import (
	"fmt"
	"net/netip"
	"strings"
)

// findHint says how to find the process that has a port.
func findHint(network string, port uint16) string {
	return fmt.Sprintf("another process has the port (as root, lsof -nP -i%s:%d names it)", strings.ToUpper(network),
		port)
}

// findHolder finds no process on this system.
func findHolder(string, netip.AddrPort) (process, bool) { return process{}, false }
