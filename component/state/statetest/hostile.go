package statetest

import (
	"net"
	"runtime"
	"testing"
)

// Hostile starts a server on loopback that passes each connection to serve, and then closes it. It ends with the test.
// Hostile returns the address.
func Hostile(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	var l Listener
	l.Start(t, func(conn net.Conn) {
		defer conn.Close()
		serve(conn)
	})
	t.Cleanup(func() {
		l.Close()
		l.Wait()
	})
	return l.Address()
}

// Bounded calls f. It is an error if the process allocates more than most bytes meanwhile. The bytes of memory that is
// free again count too.
func Bounded(t testing.TB, most uint64, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("%d bytes were allocated, more than %d", n, most)
	}
}
