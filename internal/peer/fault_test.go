package peer_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

func TestCall_WorksAfterPeerRestart(t *testing.T) {
	net := newNetwork(false)
	b := start(t, net, "b", []peer.Method{echo("echo")})
	a := start(t, net, "a", nil)
	ctx := within(t, 2*time.Minute)
	for range 5 {
		if _, err := a.Client().Call(ctx, "b", "echo", nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := a.Client().Call(ctx, "b", "echo", nil)
		wantCode(t, err, fault.Unavailable)
		b = start(t, net, "b", []peer.Method{echo("echo")}, at(b.addr))
		a.Alive("b")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, net, "c", []peer.Method{echo("echo")}, at(b.addr)) // the address has a new owner
	net.place("b", b.addr)
	a.Alive("b")
	_, err := a.Client().Call(ctx, "b", "echo", nil)
	wantCode(t, err, fault.Unavailable)
	wantReason(t, err, peer.ReasonWrongServer)
}

func TestCall_OutcomeIsCorrectDuringPeerRestarts(t *testing.T) {
	net := newNetwork(false)
	var done atomic.Int64
	count := []peer.Method{{Name: "count", Handle: func(context.Context, peer.Request) ([]byte, error) {
		done.Add(1)
		return nil, nil
	}}}
	b := start(t, net, "b", count)
	a := start(t, net, "a", nil)
	var ok, maybe atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch _, err := a.Client().Call(within(t, time.Minute), "b", "count", nil); fault.CodeOf(err) {
				case "":
					ok.Add(1)
				case fault.Indeterminate:
					maybe.Add(1)
				case fault.Unavailable:
					a.Alive("b")
				default:
					t.Errorf("unexpected: %v", err)
				}
			}
		})
	}
	for range 10 {
		before := ok.Load()
		eventually(t, "calls go through", func() bool { return ok.Load() > before+50 })
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = start(t, net, "b", count, at(b.addr))
	}
	close(stop)
	wg.Wait()
	if did := done.Load(); did < ok.Load() || did > ok.Load()+maybe.Load() {
		t.Errorf("%d were done, %d confirmed, %d may have been", did, ok.Load(), maybe.Load())
	}
}

func TestCall_ConnectionLostAfterSendIsIndeterminate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 1)
		start(t, net, "b", []peer.Method{waiter(ended)})
		a := start(t, net, "a", nil)
		time.AfterFunc(time.Second, func() { a.Cut("b") })
		_, err := a.Client().Call(context.Background(), "b", "wait", nil)
		wantCode(t, err, fault.Indeterminate)
		if <-ended == nil {
			t.Error("the handler's context did not end")
		}
	})
}

// scripted starts a server that runs script on each call connection.
func scripted(t *testing.T, n *network, id string, script func(c net.Conn, number int)) {
	t.Helper()
	l := n.listen(t, "")
	n.place(id, l.Addr().String())
	var wg sync.WaitGroup
	wg.Go(func() {
		for number := 0; ; number++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if _, err := peer.ReadHello(c); err != nil {
					return
				}
				if _, err := c.Write(peer.AcceptAnswer(peer.Identity{Server: id, Cluster: "c", Epoch: 1})); err == nil {
					script(c, number)
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

// swallow reads n bytes.
func swallow(c net.Conn, n int) { _, _ = io.CopyN(io.Discard, c, int64(n)) }

func TestCall_PartlySentIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		var conns atomic.Int64
		scripted(t, n, "b", func(c net.Conn, _ int) { // takes a part of the request and goes away
			conns.Add(1)
			swallow(c, peer.FirstRequest/2)
		})
		a := start(t, n, "a", nil)
		_, err := a.Client().Call(context.Background(), "b", "m", make([]byte, peer.FirstRequest+1))
		wantCode(t, err, fault.Unavailable)
		if got := conns.Load(); got != 3 {
			t.Errorf("%d connections were tried, want 3", got)
		}
	})
}

func TestCall_UnprocessedIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		open := len(peer.OpenFrame(1, "m", 0, 0, nil))
		scripted(t, n, "b", func(c net.Conn, number int) {
			swallow(c, open)
			if number == 0 {
				_, _ = c.Write(peer.GoAwayFrame(0))
			} else {
				_, _ = c.Write(peer.AnswerFrame(1, []byte("done")))
			}
			_, _ = io.Copy(io.Discard, c)
		})
		a := start(t, n, "a", nil)
		got, err := a.Client().Call(within(t, 3*time.Second), "b", "m", nil)
		if err != nil || string(got) != "done" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestCall_ProtocolErrorClosesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, frame := range map[string][]byte{
			"garbage":           []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
			"an open frame":     peer.OpenFrame(1, "m", 0, 0, nil),
			"an unknown stream": peer.AnswerFrame(99, nil),
			"no answer before":  peer.DataFrame(1, nil, true),
			"a wrong size": append(peer.AnswerPart(1, 10, []byte("part")),
				peer.DataFrame(1, []byte("more than was announced"), true)...),
			"too little": append(peer.AnswerPart(1, 10, []byte("part")),
				peer.DataFrame(1, []byte("less"), true)...),
			"a second answer": append(peer.AnswerPart(1, 10, []byte("part")),
				peer.AnswerPart(1, 10, []byte("part"))...),
			"a window too large": peer.WindowFrame(1, 1<<31),
		} {
			n := newNetwork(true)
			scripted(t, n, "b", func(c net.Conn, _ int) {
				swallow(c, 20)
				_, _ = c.Write(frame)
				_, _ = io.Copy(io.Discard, c)
			})
			a := start(t, n, "a", nil)
			begun := time.Now()
			_, err := a.Client().Call(within(t, time.Minute), "b", "m", []byte("payload"))
			if !fault.Is(err, fault.Indeterminate) || time.Since(begun) > time.Second {
				t.Errorf("%s: after %s: %v", name, time.Since(begun), err)
			}
		}
	})
}

func TestClose_EndsHandlersAndCallsAndIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 2)
		b := start(t, net, "b", []peer.Method{waiter(ended)})
		a := start(t, net, "a", []peer.Method{waiter(ended)})
		var wg sync.WaitGroup
		for _, c := range []struct {
			from *node
			to   string
		}{{a, "b"}, {b, "a"}} {
			wg.Go(func() {
				if _, err := c.from.Client().Call(context.Background(), c.to, "wait", nil); err == nil {
					t.Error("the call ended well")
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %s", took)
		}
		_, err := b.Client().Call(context.Background(), "a", "wait", nil)
		wantCode(t, err, fault.Unavailable)
		if _, err := b.Raft(1); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a transport of a closed port: %v", err)
		}
	})
}

func TestCutAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		a := start(t, net, "a", []peer.Method{echo("echo")})
		b := start(t, net, "b", []peer.Method{echo("echo")})
		ctx := context.Background()
		try := func(from *node, to string) error {
			a.Alive("b") // no back-off
			b.Alive("a")
			_, err := from.Client().Call(ctx, to, "echo", nil)
			return err
		}
		for _, c := range []struct {
			cut          []peer.Direction
			ab, ba       bool
			what, reason string
		}{
			{nil, false, false, "both ways", ""},
			{[]peer.Direction{peer.Outbound}, false, true, "what a dials", ""},
			{[]peer.Direction{peer.Inbound}, true, false, "what b dials", ""},
			{[]peer.Direction{peer.Inbound, peer.Outbound}, false, false, "both, named", ""},
		} {
			if x, y := try(a, "b"), try(b, "a"); x != nil || y != nil {
				t.Fatalf("before: %v, %v", x, y)
			}
			a.Cut("b", c.cut...)
			if x, y := try(a, "b"), try(b, "a"); (x == nil) != c.ab || (y == nil) != c.ba {
				t.Errorf("%s: a to b: %v, b to a: %v", c.what, x, y)
			}
			a.Heal("b", c.cut...)
		}
	})
}

func TestRefresh_FencesEarlierConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		join := echo("join")
		join.Join = true
		a := start(t, net, "a", []peer.Method{echo("echo"), join})
		b := start(t, net, "b", []peer.Method{echo("echo")})
		ctx := context.Background()
		for _, c := range []struct {
			client *peer.Client
			method string
		}{{b.Client(), "echo"}, {b.Join(), "join"}} {
			if _, err := c.client.Call(ctx, "a", c.method, nil); err != nil {
				t.Fatal(err)
			}
		}
		a.become(peer.Identity{Server: "a", Cluster: "c", Epoch: 2})
		a.Refresh()
		synctest.Wait()
		_, err := b.Client().Call(ctx, "a", "echo", nil)
		wantReason(t, err, peer.ReasonOlderEpoch)
		if !strings.Contains(err.Error(), "left behind by the rescue") {
			t.Errorf("the error does not say what to do: %v", err)
		}
		if got := a.metric(t, "connections", "kind", "join"); got != 1 {
			t.Errorf("%v connections for joining are left", got)
		}
		_, err = a.Client().Call(ctx, "b", "echo", nil)
		wantReason(t, err, peer.ReasonNewerEpoch)
		b.become(peer.Identity{Server: "b", Cluster: "c", Epoch: 2})
		b.Refresh()
		synctest.Wait()
		a.Alive("b")
		b.Alive("a")
		if _, err := b.Client().Call(ctx, "a", "echo", nil); err != nil {
			t.Errorf("at the new epoch: %v", err)
		}
	})
}

func TestPreamble_RefusesFalseIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		l := n.listen(t, "")
		n.place("b", l.Addr().String())
		var wg sync.WaitGroup
		wg.Go(func() { // accepts every hello, and answers with its identity
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := peer.ReadHello(c); err == nil {
				_, _ = c.Write(peer.AcceptAnswer(peer.Identity{Server: "x", Cluster: "c", Epoch: 1}))
			}
		})
		a := start(t, n, "a", nil)
		_, err := a.Client().Call(context.Background(), "b", "echo", nil)
		wantReason(t, err, peer.ReasonWrongServer)
		_ = l.Close()
		wg.Wait()
	})
}

func TestPreamble_RefusesChangingIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		start(t, n, "b", []peer.Method{echo("echo")})
		asked := 0
		a := start(t, n, "a", nil, options(func(o *peer.Options) {
			o.Self = func() peer.Identity { // rescued between the preamble and the registry
				asked++
				return peer.Identity{Server: "a", Cluster: "c", Epoch: min(uint64(asked), 2)}
			}
		}))
		_, err := a.Client().Call(context.Background(), "b", "echo", nil)
		wantReason(t, err, peer.ReasonChanged)
		if got := a.metric(t, "connections"); got != 0 {
			t.Errorf("%v connections", got)
		}
	})
}
