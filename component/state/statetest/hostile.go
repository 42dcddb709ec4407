package statetest

import (
	"net"
	"runtime"
	"testing"
)

// Hostile starts a server on loopback and returns its address. The server calls serve with each connection, and then
// closes the connection. The server ends with the test.
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

// Bounded calls f. The test fails if the process allocates more than limit bytes during the call. This includes memory
// that is freed during the call.
func Bounded(t testing.TB, limit uint64, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > limit {
		t.Errorf("%d bytes were allocated, more than %d", n, limit)
	}
}
