//go:build !unix || aix

package atmostonce

import "net"

// noticesEnd reports whether the functions ended and unusable work on this operating system.
const noticesEnd = false

// ended always returns false. On this operating system, the package cannot find out whether the other side has closed
// a connection. A request may then be sent on a closed connection, and gets no answer.
func ended(net.Conn) bool { return false }

func unusable(net.Conn) bool { return false }
