package connlimit

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener accepts one end of a pipe.
type pipeListener struct {
	net.Listener
	end net.Conn
}

func (l pipeListener) Accept() (net.Conn, error) { return half{l.end}, nil }
func (l pipeListener) Close() error              { return nil }

// half is a connection with a CloseWrite that has no effect.
type half struct{ net.Conn }

func (half) CloseWrite() error { return nil }

// lingered returns how long CloseWrite takes. The function client plays the other end.
func lingered(t *testing.T, client func(net.Listener, net.Conn)) (d time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		l := Impatient(pipeListener{end: ours}, time.Minute)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var ended sync.WaitGroup
		ended.Go(func() { client(l, theirs) })
		start := time.Now()
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		d = time.Since(start)
		_ = c.Close()
		ended.Wait()
	})
	return d
}

func send(c net.Conn, size int, pause time.Duration) {
	for {
		if _, err := c.Write(make([]byte, size)); err != nil {
			return
		}
		<-time.After(pause)
	}
}

func TestCloseWrite_DiscardsWithinBounds(t *testing.T) {
	for name, c := range map[string]struct {
		want   time.Duration
		client func(net.Listener, net.Conn)
	}{
		"a client that closes":        {0, func(_ net.Listener, c net.Conn) { _ = c.Close() }},
		"a client that sends nothing": {lingerTime, func(net.Listener, net.Conn) {}},
		"a client that sends slowly":  {lingerTime, func(_ net.Listener, c net.Conn) { send(c, 1, time.Second/3) }},
		"a client that sends a lot": {time.Second, func(_ net.Listener, c net.Conn) {
			send(c, lingerBytes/2, time.Second)
		}},
		"a stop of the server": {time.Second, func(l net.Listener, _ net.Conn) {
			<-time.After(time.Second)
			_ = l.Close()
		}},
		"a stopped server": {0, func(l net.Listener, c net.Conn) {
			_ = l.Close()
			send(c, 1, time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lingered(t, c.client); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
