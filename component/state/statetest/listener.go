package statetest

import (
	"net"
	"sync"
	"testing"
)

// Listener accepts the connections of a fake server on 127.0.0.1. It can be closed and started again. The zero value
// is ready to use. It is safe for concurrent use.
type Listener struct {
	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	address  string
	closed   bool
	done     sync.WaitGroup
}

// Start starts to listen. The first call chooses a free port, which later calls use again. Start calls serve(conn) in a
// new goroutine for each connection. serve must return when its connection is closed.
func (l *Listener) Start(t testing.TB, serve func(net.Conn)) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.address == "" {
		l.address = "127.0.0.1:" + FreePort(t)
	}
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	l.listener, l.address, l.conns, l.closed = listener, listener.Addr().String(), nil, false
	l.done.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.conns = append(l.conns, c)
			if l.closed { // Close was called after Accept
				_ = c.Close()
			}
			l.mu.Unlock()
			l.done.Go(func() { serve(c) })
		}
	})
}

// Address returns the address. It stays the same after the first Start.
func (l *Listener) Address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.address
}

// Close closes the listener and its connections. It does not wait for the goroutines that serve the connections. Use
// Wait for that.
func (l *Listener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_ = l.listener.Close()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// Wait waits until the goroutines have ended. It must be called after Close.
func (l *Listener) Wait() { l.done.Wait() }
