package peer_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/peer"
)

// BenchmarkCall compares round trips of calls with round trips of a plain TCP echo, which has one connection for
// each caller. "vs-echo" is the number of calls per echo.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, size := range []int{128, 4096} {
			b.Run(fmt.Sprintf("callers=%d/bytes=%d", callers, size), func(b *testing.B) { benchCall(b, callers, size) })
		}
	}
}

func benchCall(b *testing.B, callers, size int) {
	n := newNetwork(false)
	start(b, n, "b", []peer.Method{echo("echo")})
	a := start(b, n, "a", nil)
	payload := make([]byte, size)
	call := func(int) error {
		_, err := a.Client().Call(context.Background(), "b", "echo", payload)
		return err
	}
	if err := call(0); err != nil {
		b.Fatal(err)
	}
	bare, closeAll := bareEcho(b, callers, size)
	defer closeAll()
	floor := spread(b, callers, min(b.N, 100_000), bare)
	b.ReportAllocs()
	b.ResetTimer()
	took := spread(b, callers, b.N, call)
	b.StopTimer()
	perCall := took.Seconds() / float64(b.N)
	perEcho := floor.Seconds() / float64(min(b.N, 100_000))
	b.ReportMetric(1/perCall, "calls/s")
	b.ReportMetric(perEcho/perCall, "vs-echo")
}

// spread runs f the given number of times, with one goroutine per caller.
func spread(b *testing.B, callers, times int, f func(caller int) error) time.Duration {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(times))
	var wg sync.WaitGroup
	begun := time.Now()
	for i := range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

// bareEcho opens connections to a server that sends back what it reads.
func bareEcho(b *testing.B, callers, size int) (trip func(caller int) error, closeAll func()) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				buf := make([]byte, size)
				for {
					if _, err := io.ReadFull(c, buf); err != nil {
						return
					}
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			})
		}
	})
	conns, bufs := make([]net.Conn, callers), make([][]byte, callers)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
			b.Fatal(err)
		}
		bufs[i] = make([]byte, size)
	}
	trip = func(i int) error {
		if _, err := conns[i].Write(bufs[i]); err != nil {
			return err
		}
		_, err := io.ReadFull(conns[i], bufs[i])
		return err
	}
	return trip, func() {
		for _, c := range conns {
			_ = c.Close()
		}
		_ = l.Close()
		wg.Wait()
	}
}

// BenchmarkLarge measures the throughput of large answers.
func BenchmarkLarge(b *testing.B) {
	n := newNetwork(false)
	const size = 16 << 20
	answer := make([]byte, size)
	start(b, n, "b", []peer.Method{{Name: "large", Handle: func(context.Context, peer.Request) ([]byte, error) {
		return answer, nil
	}}})
	a := start(b, n, "a", nil)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := a.Client().Call(context.Background(), "b", "large", nil); err != nil {
			b.Fatal(err)
		}
	}
}
