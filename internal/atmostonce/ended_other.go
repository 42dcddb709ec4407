//go:build !unix || aix

package atmostonce

import "net"

// ended always returns false, because on this operating system the package cannot find out whether the other end has
// closed a connection. A request on a closed connection then fails only when no answer arrives.
func ended(net.Conn) bool { return false }
