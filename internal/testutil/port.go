package testutil

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"testing"
)

// The range of ports that ReservePort tries. The system assigns only higher ports to outgoing connections and to
// listeners on port 0.
const (
	firstPort = 10240
	endPort   = 32768
)

// SparePort returns a port of 127.0.0.1 that is free for TCP and UDP. On Linux, no other test gets this port until
// this test ends.
func SparePort(t testing.TB) int {
	t.Helper()
	port, release, err := ReservePort()
	Must(t, err)
	t.Cleanup(release)
	return port
}

// ReservePort returns a port of 127.0.0.1 that is free for TCP and UDP. On Linux, no other call in any process returns
// this port until release is called or this process ends.
//
// The caller must keep a reference to release, because otherwise the garbage collector may end the reservation.
func ReservePort() (port int, release func(), err error) {
	for _, i := range rand.Perm(endPort - firstPort) { //nolint:gosec // chance, not a secret
		port := firstPort + i
		cancel, err := reserve(port)
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			return 0, nil, err
		}
		if isFree(port) {
			return port, cancel, nil
		}
		cancel()
	}
	return 0, nil, fmt.Errorf("127.0.0.1 has no free port between %d and %d", firstPort, endPort-1)
}

// reserve reserves a port with a socket in Linux's abstract namespace. The kernel removes the socket when the process
// ends. On other systems, reserve does nothing.
func reserve(port int) (release func(), err error) {
	if runtime.GOOS != "linux" {
		return func() {}, nil
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@quorate-test-port-%d", port), Net: "unix"})
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

func isFree(port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	l, err := net.Listen("tcp", address) //nolint:noctx // a local port
	if err != nil {
		return false
	}
	defer func() { _ = l.Close() }()
	c, err := net.ListenPacket("udp", address) //nolint:noctx // a local port
	if err != nil {
		return false
	}
	return c.Close() == nil
}
