package peer_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

// waiter returns a method whose handler runs until its context ends. The handler then sends the error of the context
// to ended.
func waiter(ended chan<- error) peer.Method {
	return peer.Method{Name: "wait", Handle: func(ctx context.Context, _ peer.Request) ([]byte, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}
}

func TestCall_DeadlineReachesHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		var left time.Duration
		start(t, net, "b", []peer.Method{{Name: "left",
			Handle: func(ctx context.Context, _ peer.Request) ([]byte, error) {
				at, ok := ctx.Deadline()
				if left = time.Until(at); !ok {
					left = -1
				}
				return nil, nil
			}}})
		a := start(t, net, "a", nil)
		for _, want := range []time.Duration{700 * time.Millisecond, time.Hour, -1} {
			ctx := context.Background()
			if want > 0 {
				ctx = within(t, want)
			}
			if _, err := a.Client().Call(ctx, "b", "left", nil); err != nil || left != want {
				t.Errorf("the handler has %s, want %s; %v", left, want, err)
			}
		}
	})
}

func TestCall_DeadlineExceededIsIndeterminateAndCancelsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 1)
		start(t, net, "b", []peer.Method{waiter(ended)})
		a := start(t, net, "a", nil)
		_, err := a.Client().Call(within(t, time.Second), "b", "wait", nil)
		wantCode(t, err, fault.Indeterminate)
		if got := <-ended; got == nil {
			t.Error("the handler's context did not end")
		}
	})
}

func TestCall_CancellationReachesHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 1)
		start(t, net, "b", []peer.Method{waiter(ended)})
		a := start(t, net, "a", nil)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		_, err := a.Client().Call(ctx, "b", "wait", nil)
		wantCode(t, err, fault.Indeterminate)
		begun := time.Now()
		if got := <-ended; got != context.Canceled || time.Since(begun) > 0 {
			t.Errorf("the handler ended by %v after %s", got, time.Since(begun))
		}
	})
}

// TestCall_SucceedsAfterCancelledDial checks that a caller that gives up does not make other calls to the server fail.
// A cancelled dial says nothing about the server.
func TestCall_SucceedsAfterCancelledDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, dialled := newNetwork(true), make(chan struct{})
		start(t, n, "b", []peer.Method{echo("echo")})
		first := true
		a := start(t, n, "a", nil, options(func(o *peer.Options) {
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				if !first {
					return n.dial(ctx, addr)
				}
				first = false
				close(dialled)
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-dialled
			cancel()
		}()
		if _, err := a.Probe(ctx, "b"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the cancelled one: %v", err)
		}
		if _, err := a.Client().Call(t.Context(), "b", "echo", []byte("x")); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

func TestCall_ExpiredBeforeSendIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 1)
		start(t, net, "b", []peer.Method{waiter(ended)})
		a := start(t, net, "a", nil, options(func(o *peer.Options) { o.Limits.InFlight = 1 }))
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := a.Client().Call(context.Background(), "b", "none", nil) // there is a connection now
		wantCode(t, err, fault.Unimplemented)
		for range 20 {
			_, err = a.Client().Call(over, "b", "wait", nil)
			wantCode(t, err, fault.Timeout)
		}
		first, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = a.Client().Call(first, "b", "wait", nil) })
		synctest.Wait()
		_, err = a.Client().Call(within(t, time.Second), "b", "wait", nil) // the only slot is taken
		wantCode(t, err, fault.Timeout)
		stop()
		wg.Wait()
		<-ended
		if len(ended) > 0 {
			t.Error("another handler ran")
		}
	})
}

// TestWait_HasPlacesOfItsOwn checks that calls by Wait use no slots of calls by Call, and that calls by Call use no
// slots of calls by Wait.
func TestWait_HasPlacesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 2)
		start(t, net, "b", []peer.Method{waiter(ended), echo("echo")})
		a := start(t, net, "a", nil, options(func(o *peer.Options) { o.Limits.InFlight = 1 }))
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = a.Client().Wait(ctx, "b", "wait", nil) })
		synctest.Wait()
		if _, err := a.Client().Call(within(t, time.Second), "b", "echo", nil); err != nil {
			t.Errorf("a call beside one that waits: %v", err)
		}
		_, err := a.Client().Wait(within(t, time.Second), "b", "wait", nil)
		wantCode(t, err, fault.Timeout)
		wg.Go(func() { _, _ = a.Client().Call(ctx, "b", "wait", nil) })
		synctest.Wait()
		_, err = a.Client().Call(within(t, time.Second), "b", "echo", nil)
		wantCode(t, err, fault.Timeout)
		stop()
		wg.Wait()
	})
}

func TestDial_SilentListenerCostsDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		l := n.listen(t, "")
		n.place("b", l.Addr().String())
		a := start(t, n, "a", nil)
		var taken []net.Conn
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				taken = append(taken, c)
			}
		})
		begun := time.Now()
		_, err := a.Client().Call(within(t, time.Minute), "b", "echo", nil)
		wantCode(t, err, fault.Unavailable)
		if took := time.Since(begun); took != 2*time.Second {
			t.Errorf("gave up after %s", took)
		}
		_ = l.Close()
		wg.Wait()
		for _, c := range taken {
			_ = c.Close()
		}
	})
}

// mute starts a server that accepts connections and calls and never answers.
func mute(t *testing.T, n *network, id string) {
	l := n.listen(t, "")
	n.place(id, l.Addr().String())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if _, err := peer.ReadHello(c); err == nil {
					_, _ = c.Write(peer.AcceptAnswer(peer.Identity{Server: id, Cluster: "c", Epoch: 1}))
				}
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

func TestKeepalive_SilentServerIsDroppedInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		mute(t, n, "b")
		a := start(t, n, "a", nil)
		begun := time.Now()
		_, err := a.Client().Call(context.Background(), "b", "echo", nil)
		wantCode(t, err, fault.Indeterminate)
		if took := time.Since(begun); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("given up after %s", took)
		}
	})
}

func TestKeepalive_SilentCallerIsDroppedAndHandlersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ended := newNetwork(true), make(chan error, 1)
		b := start(t, n, "b", []peer.Method{waiter(ended)})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		if _, err := c.Write(peer.OpenFrame(1, "wait", 0, 0, nil)); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		<-ended
		if took := time.Since(begun); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("the handler's context ended after %s", took)
		}
		synctest.Wait()
		if got := b.metric(t, "connections"); got != 0 {
			t.Errorf("%v connections are left", got)
		}
	})
}

func handshake(t testing.TB, c net.Conn, kind string, from peer.Identity, to string) {
	t.Helper()
	if _, err := c.Write(peer.Hello(kind, from, to, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.ReadAnswer(c); err != nil {
		t.Fatal(err)
	}
}

func TestKeepalive_LongCallLivesAndIdleConnectionCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		b := start(t, net, "b", []peer.Method{{Name: "nap",
			Handle: func(ctx context.Context, _ peer.Request) ([]byte, error) {
				rest(ctx, 10*time.Minute)
				return nil, ctx.Err()
			}}})
		a := start(t, net, "a", nil)
		if _, err := a.Client().Call(context.Background(), "b", "nap", nil); err != nil {
			t.Fatalf("a call of ten minutes: %v", err)
		}
		rest(context.Background(), 50*time.Second)
		if got := a.metric(t, "connections"); got != 1 {
			t.Errorf("%v connections after 50 s without a call", got)
		}
		rest(context.Background(), 20*time.Second)
		if x, y := a.metric(t, "connections"), b.metric(t, "connections"); x != 0 || y != 0 {
			t.Errorf("%v and %v connections after 70 s without a call", x, y)
		}
		if n := a.Client().Links(); n != 0 {
			t.Errorf("%d servers are remembered", n)
		}
		if _, err := a.Client().Call(within(t, 20*time.Minute), "b", "nap", nil); err != nil {
			t.Errorf("a call after the connection was closed: %v", err)
		}
	})
}

// rest waits in virtual time.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func TestDial_BacksOffAndRetriesOncePeerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		net.place("b", "later")
		a := start(t, net, "a", nil)
		for range 10_000 {
			_, err := a.Client().Call(context.Background(), "b", "echo", nil)
			wantCode(t, err, fault.Unavailable)
			rest(context.Background(), time.Millisecond)
		}
		if dials := a.metric(t, "dial_failures_total", "kind", "call"); dials < 10 || dials > 30 {
			t.Errorf("%v dials in 10 s", dials)
		}
		start(t, net, "b", []peer.Method{echo("echo")}, at("later"))
		_, err := a.Client().Call(context.Background(), "b", "echo", nil)
		wantCode(t, err, fault.Unavailable) // still backing off
		a.Alive("b")
		if _, err := a.Client().Call(context.Background(), "b", "echo", nil); err != nil {
			t.Errorf("after Alive: %v", err)
		}
	})
}

func TestPreamble_SlowIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", nil)
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := time.Now()
		var wrote int
		for _, octet := range peer.Hello("call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b", 0) {
			if _, err := c.Write([]byte{octet}); err != nil {
				break
			}
			wrote++
			rest(context.Background(), time.Second)
		}
		if took := time.Since(begun); took > 6*time.Second || wrote == 0 {
			t.Errorf("%d bytes in %s", wrote, took)
		}
		synctest.Wait()
		if got := b.metric(t, "refused_total", "reason", "timeout", "direction", "inbound"); got != 1 {
			t.Errorf("counted %v", got)
		}
	})
}

func TestPreamble_TooManyUnfinishedCutsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", []peer.Method{echo("echo")}, options(func(o *peer.Options) { o.Limits.Pending = 3 }))
		var conns []net.Conn
		for range 5 {
			c, err := n.dial(context.Background(), b.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conns = append(conns, c)
			synctest.Wait()
		}
		for i, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			if cut := err == io.EOF; cut != (i < 2) {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		if got := b.metric(t, "refused_total", "reason", "busy"); got != 2 {
			t.Errorf("counted %v", got)
		}
		a := start(t, n, "a", nil)
		if _, err := a.Client().Call(context.Background(), "b", "echo", nil); err != nil {
			t.Errorf("an honest caller among them: %v", err)
		}
	})
}
