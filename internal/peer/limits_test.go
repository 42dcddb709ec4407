package peer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/peer"
)

func TestClose_DoesNotWaitForStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", []peer.Method{echo("echo")})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		if _, err := c.Write(peer.OpenFrame(1, "echo", 0, 1, []byte("x"))); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it took %s, the time for draining is 1 s", took)
		}
	})
}

func TestLimits_StalledReaderHoldsAtMostConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		var ran atomic.Int64
		b := start(t, n, "b", []peer.Method{{Name: "large", Concurrency: 5,
			Handle: func(context.Context, peer.Request) ([]byte, error) {
				ran.Add(1)
				return make([]byte, 1<<20), nil
			}}})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		for id := uint64(1); id <= 1000; id++ {
			if _, err := c.Write(peer.OpenFrame(id, "large", 0, 0, nil)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := ran.Load(); got != 5 {
			t.Errorf("%d handlers ran for a caller that takes no answers", got)
		}
	})
}

func TestLimits_FloodingCallerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ended := newNetwork(true), make(chan error, peer.MaxInFlight)
		b := start(t, n, "b", []peer.Method{waiter(ended)})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		id := uint64(1)
		for ; id <= 10*peer.MaxInFlight; id++ {
			if _, err = c.Write(peer.OpenFrame(id, "wait", 0, 0, nil)); err != nil {
				break
			}
		}
		// The callee accepts twice as many calls as a caller may have in flight, and those that are on their way.
		if err == nil || id > 4*peer.MaxInFlight {
			t.Errorf("%d calls were taken", id)
		}
	})
}

func TestLimits_OpenAndResetLeakNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		var now, most atomic.Int64
		b := start(t, n, "b", []peer.Method{{Name: "held", Concurrency: 2,
			Handle: func(ctx context.Context, _ peer.Request) ([]byte, error) {
				most.Store(max(most.Load(), now.Add(1)))
				defer now.Add(-1)
				<-ctx.Done()
				rest(context.Background(), 10*time.Millisecond) // the handler returns late
				return nil, nil
			}}})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		for id := uint64(1); id <= 5*peer.MaxInFlight; id++ {
			if _, err := c.Write(append(peer.OpenFrame(id, "held", 0, 0, nil), peer.ResetFrame(id)...)); err != nil {
				t.Fatalf("call %d: %v", id, err)
			}
		}
		rest(context.Background(), time.Second)
		if most.Load() > 2 || now.Load() != 0 {
			t.Errorf("%d ran at a time, %d run still", most.Load(), now.Load())
		}
		if got := b.metric(t, "rpc_in_flight", "side", "server"); got != 0 {
			t.Errorf("%v calls are counted as running", got)
		}
	})
}

func TestLimits_AbandonedConnectionsAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", []peer.Method{echo("echo")})
		var conns []net.Conn
		for range 11 {
			c, err := n.dial(context.Background(), b.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
			conns = append(conns, c)
		}
		synctest.Wait()
		if got := b.metric(t, "connections"); got != 8 {
			t.Errorf("%v connections of one server", got)
		}
		_ = conns[2].SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := conns[2].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the oldest is not cut: %v", err)
		}
	})
}

func TestLimits_ConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", []peer.Method{echo("echo")}, options(func(o *peer.Options) { o.Limits.Connections = 2 }))
		for i, id := range []string{"a1", "a2", "a3"} {
			a := start(t, n, id, nil)
			_, err := a.Client().Call(context.Background(), "b", "echo", nil)
			if i < 2 && err != nil {
				t.Error(err)
			}
			if i == 2 {
				wantReason(t, err, peer.ReasonBusy)
			}
		}
		if got := b.metric(t, "connections", "direction", "inbound"); got != 2 {
			t.Errorf("%v connections", got)
		}
	})
}

// faulty is a listener that fails a few times.
type faulty struct {
	net.Listener
	left atomic.Int64
}

func (f *faulty) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, os.ErrInvalid
	}
	return f.Listener.Accept()
}

func TestListener_RetriesAcceptWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := prepare(t, n, "b", []peer.Method{echo("echo")})
		l := &faulty{Listener: n.listen(t, "")}
		l.left.Store(10)
		n.place("b", l.Addr().String())
		if err := b.Open(l); err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		a := start(t, n, "a", nil, options(func(o *peer.Options) { o.Timing.Dial = time.Minute }))
		begun := time.Now()
		if _, err := a.Client().Call(context.Background(), "b", "echo", nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < time.Second || took > 10*time.Second {
			t.Errorf("ten failures took %s", took)
		}
	})
}

func TestMetrics_LabelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		a := start(t, n, "a", nil)
		for i := range 1000 {
			_, _ = a.Client().Call(context.Background(), "nobody", fmt.Sprintf("method-%d", i), nil)
		}
		if got := a.metric(t, "rpc_requests_total", "method", "other"); got < 800 || got >= 1000 {
			t.Errorf("%v of 1000 methods share a label", got)
		}
	})
}

// lines counts log lines.
type lines struct{ atomic.Int64 }

func (l *lines) Write(b []byte) (int, error) { l.Add(1); return len(b), nil }

func TestRefusal_IsLoggedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, log := newNetwork(true), &lines{}
		b := start(t, n, "b", nil, options(func(o *peer.Options) {
			o.Logger = slog.New(slog.NewTextHandler(log, nil))
		}))
		call := func(id string) {
			a := start(t, n, "caller", nil, func(_ *peer.Options, n *node) {
				n.self = peer.Identity{Server: id, Cluster: "other"}
			})
			_, _ = a.Client().Call(context.Background(), "b", "echo", nil)
			_ = a.Close()
			synctest.Wait()
		}
		for range 10 {
			call("a")
		}
		if got := log.Load(); got != 1 {
			t.Errorf("%d lines for one server", got)
		}
		for i := range 400 {
			call(fmt.Sprint("made-up-", i))
		}
		if got := log.Load(); got != 256 {
			t.Errorf("%d lines for many names", got)
		}
		rest(context.Background(), time.Minute)
		call("a")
		if got := log.Load(); got != 257 {
			t.Errorf("%d lines after a minute", got)
		}
		if got := b.metric(t, "refused_total", "reason", "foreign_cluster"); got != 411 {
			t.Errorf("counted %v", got)
		}
	})
}

func TestLimits_CallerOverFlowControlWindowIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		ended := make(chan error, 10)
		held := waiter(ended)
		held.Concurrency = 1
		b := start(t, n, "b", []peer.Method{held})
		conn, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		handshake(t, conn, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		busy := append(peer.OpenFrame(1, "wait", 0, 0, nil), peer.OpenFrame(2, "wait", 0, 1<<20, nil)...)
		if _, err := conn.Write(busy); err != nil {
			t.Fatal(err)
		}
		sent := 0
		for err == nil && sent < 1<<20 {
			_, err = conn.Write(peer.DataFrame(2, make([]byte, 1024), false))
			sent += 1024
		}
		if over := sent - peer.FirstRequest; err == nil || over > 128<<10 { // the server may read some bytes ahead
			t.Errorf("cut after %d bytes: %v", sent, err)
		}
		_ = conn.Close()
		wg.Wait()
	})
}

// TestLimits_PendingEndsBeforeTheAnswer checks that a connection no longer counts as pending when the caller can read
// the answer. The caller may then send a request, so the limit of pending connections must not close the connection.
// The pipe keeps the server in its write until the answer is read.
func TestLimits_PendingEndsBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", []peer.Method{echo("echo")}, func(o *peer.Options, _ *node) {
			o.Limits.PendingPerSource = 1
		})
		c, err := n.dial(t.Context(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		self := peer.Identity{Server: "a", Cluster: "c", Epoch: 1}
		if _, err := c.Write(peer.Hello("call", self, "b", 0)); err != nil {
			t.Fatal(err)
		}
		begun := make([]byte, 1)
		if _, err := io.ReadFull(c, begun); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second one makes the server close the oldest pending connection
			other, err := n.dial(t.Context(), b.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			synctest.Wait()
		}
		if _, err := peer.ReadAnswer(io.MultiReader(bytes.NewReader(begun), c)); err != nil {
			t.Errorf("the connection was closed while its caller read the answer: %v", err)
		}
	})
}
