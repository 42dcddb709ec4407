package peer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

func TestCall_ReturnsHandlerAnswer(t *testing.T) {
	net := newNetwork(false)
	var from peer.Peer
	start(t, net, "b", []peer.Method{{Name: "upper", Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		from = r.From
		return bytes.ToUpper(r.Payload), nil
	}}})
	a := start(t, net, "a", nil)
	for _, c := range []struct{ in, want string }{{"text", "TEXT"}, {"", ""}} {
		got, err := a.Client().Call(within(t, time.Minute), "b", "upper", []byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%q, %v", got, err)
		}
	}
	if diff := cmp.Diff(peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, from.Identity); diff != "" {
		t.Errorf("the handler sees another caller: %s", diff)
	}
}

func TestCall_HandlerErrorKeepsCodeAndDetails(t *testing.T) {
	net := newNetwork(false)
	long := strings.Repeat("\x01", 100_000)
	sent := map[string]error{
		"conflict": &fault.Error{Code: fault.Conflict, Op: "kv.Apply", Msg: "etag mismatch", Hint: "read again",
			Key: "k"},
		"not_leader": &fault.Error{Code: fault.NotLeader, Op: "group.Propose", Msg: "not here", Hint: "node-2"},
		"long":       &fault.Error{Code: fault.NotFound, Op: long, Msg: long, Hint: long, Key: long},
		"plain":      errors.New(long),
	}
	start(t, net, "b", []peer.Method{{Name: "fail", Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		return nil, sent[string(r.Payload)]
	}}})
	a := start(t, net, "a", nil)
	for name, want := range sent {
		_, err := a.Client().Call(within(t, time.Minute), "b", "fail", []byte(name))
		wantCode(t, err, fault.CodeOf(want))
		if name == "long" || name == "plain" {
			continue // the text was shortened before it was sent, so only the code is compared
		}
		got, _ := fault.As(err)
		w, _ := fault.As(want)
		if got.Hint != w.Hint || got.Key != w.Key || got.Msg != w.Msg {
			t.Errorf("%s came back as %#v", name, got)
		}
	}
}

func TestCall_HandlerContextErrorIsIndeterminate(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{{Name: "stopped", Handle: func(context.Context, peer.Request) ([]byte, error) {
		return nil, fmt.Errorf("half done: %w", context.DeadlineExceeded)
	}}})
	a := start(t, net, "a", nil)
	_, err := a.Client().Call(within(t, time.Minute), "b", "stopped", nil)
	wantCode(t, err, fault.Indeterminate)
}

func TestCall_InvalidIsRefusedBeforeHandler(t *testing.T) {
	net := newNetwork(false)
	small := echo("small")
	small.MaxRequest = 10
	wide := peer.Method{Name: "wide", MaxAnswer: 10, Handle: func(context.Context, peer.Request) ([]byte, error) {
		return make([]byte, 11), nil
	}}
	start(t, net, "b", []peer.Method{small, wide, echo("echo"),
		{Name: "wider", Handle: func(context.Context, peer.Request) ([]byte, error) {
			return make([]byte, 2<<20), nil
		}}})
	a := start(t, net, "a", nil, options(func(o *peer.Options) { o.Limits.Message = 1 << 20 }))
	for _, c := range []struct {
		server, method string
		size           int
		want           fault.Code
	}{
		{"b", "nothing", 0, fault.Unimplemented},
		{"b", "", 0, fault.Invalid},
		{"b", strings.Repeat("m", 65), 0, fault.Invalid},
		{"b", "small", 11, fault.TooLarge},
		{"b", "small", 200_000, fault.TooLarge},
		{"b", "wide", 0, fault.TooLarge},
		{"b", "echo", 1<<20 + 1, fault.TooLarge},
		{"b", "wider", 0, fault.TooLarge},
		{"nobody", "echo", 0, fault.Unavailable},
	} {
		_, err := a.Client().Call(within(t, time.Minute), c.server, c.method, make([]byte, c.size))
		if !fault.Is(err, c.want) {
			t.Errorf("%s.%s with %d bytes: %v, want %s", c.server, c.method, c.size, err, c.want)
		}
	}
	if _, err := a.Client().Call(within(t, time.Minute), "b", "small", make([]byte, 10)); err != nil {
		t.Errorf("the connection does not work any more: %v", err)
	}
}

func TestCall_ThousandConcurrentGetTheirOwnAnswers(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{echo("echo")})
	a := start(t, net, "a", nil)
	ctx := within(t, 2*time.Minute)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			for j := range 5 {
				want := fmt.Sprintf("%d/%d", i, j)
				if got, err := a.Client().Call(ctx, "b", "echo", []byte(want)); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v", want, got, err)
				}
			}
		})
	}
	wg.Wait()
	if got := a.metric(t, "connections", "kind", "call", "direction", "outbound"); got != 1 {
		t.Errorf("%v connections for small calls, want 1", got)
	}
	if got := a.metric(t, "rpc_requests_total", "side", "client", "method", "echo", "outcome", "ok"); got != 5000 {
		t.Errorf("counted %v calls", got)
	}
}

func TestCall_SmallIsNotBlockedByLarge(t *testing.T) {
	net := newNetwork(false)
	const size = 64 << 20
	start(t, net, "b", []peer.Method{echo("echo"),
		{Name: "large", Handle: func(context.Context, peer.Request) ([]byte, error) {
			return make([]byte, size), nil
		}}})
	a := start(t, net, "a", nil)
	ctx := within(t, 5*time.Minute)
	payload := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var wg sync.WaitGroup
	var busy atomic.Bool
	busy.Store(true)
	wg.Go(func() {
		defer busy.Store(false)
		got, err := a.Client().Call(ctx, "b", "echo", payload)
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("large both ways: %d bytes, %v", len(got), err)
		}
	})
	wg.Go(func() { // this small request shares a connection with the other requests
		if got, err := a.Client().Call(ctx, "b", "large", nil); err != nil || len(got) != size {
			t.Errorf("large answer: %d bytes, %v", len(got), err)
		}
	})
	passed := 0
	for busy.Load() {
		if _, err := a.Client().Call(ctx, "b", "echo", []byte("small")); err != nil {
			t.Fatal(err)
		}
		passed++
	}
	wg.Wait()
	if passed < 20 {
		t.Errorf("only %d small calls passed the large ones", passed)
	}
}

func TestMethod_ConcurrencyIsBounded(t *testing.T) {
	net := newNetwork(false)
	var now, most atomic.Int64
	m := peer.Method{Name: "slow", Concurrency: 3, Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		defer now.Add(-1)
		return r.Payload, nil
	}}
	start(t, net, "b", []peer.Method{m})
	a := start(t, net, "a", nil)
	ctx := within(t, time.Minute)
	var wg sync.WaitGroup
	for i := range 100 {
		payload := bytes.Repeat([]byte{byte(i)}, 60_000+i*100) // some in one piece, some in several
		wg.Go(func() {
			if got, err := a.Client().Call(ctx, "b", "slow", payload); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > 2*3 { // two connections
		t.Errorf("%d handlers ran at a time", n)
	}
}

func TestMethod_OnlyJoinReachesServerWithoutCluster(t *testing.T) {
	net := newNetwork(false)
	join := echo("join")
	join.Join = true
	methods := []peer.Method{join, echo("data")}
	start(t, net, "formed", methods)
	start(t, net, "new", methods, identity("", 0))
	member := start(t, net, "member", nil)
	joiner := start(t, net, "joiner", nil, identity("", 0))
	stranger := start(t, net, "stranger", nil, identity("other", 1))
	ctx := within(t, time.Minute)
	for _, c := range []struct {
		what           string
		client         *peer.Client
		server, method string
		want           fault.Code
	}{
		{"a joiner asks a member", joiner.Join(), "formed", "join", ""},
		{"a joiner asks a joiner", joiner.Join(), "new", "join", ""},
		{"a member asks a joiner", member.Join(), "new", "join", ""},
		{"a member asks a member", member.Join(), "formed", "join", ""},
		{"a member calls it the ordinary way", member.Client(), "formed", "join", ""},
		{"a joiner wants data", joiner.Join(), "formed", "data", fault.Denied},
		{"a joiner calls", joiner.Client(), "formed", "data", fault.Unavailable},
		{"a member calls a joiner", member.Client(), "new", "data", fault.Unavailable},
		{"a stranger joins", stranger.Join(), "formed", "join", fault.Unavailable},
		{"a stranger asks a joiner", stranger.Join(), "new", "join", ""},
	} {
		_, err := c.client.Call(ctx, c.server, c.method, nil)
		if fault.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestCall_HandlerPanicFailsOnlyThatCall(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{echo("echo"),
		{Name: "panic", Handle: func(context.Context, peer.Request) ([]byte, error) {
			panic("defect")
		}}})
	a := start(t, net, "a", nil)
	ctx := within(t, time.Minute)
	_, err := a.Client().Call(ctx, "b", "panic", nil)
	wantCode(t, err, fault.Internal)
	if _, err := a.Client().Call(ctx, "b", "echo", nil); err != nil {
		t.Error(err)
	}
}

func TestMethod_RegistrationIsCheckedAndEndsAtOpen(t *testing.T) {
	net := newNetwork(false)
	n := prepare(t, net, "a", []peer.Method{echo("there")})
	huge := echo("huge")
	huge.MaxAnswer = 1 << 40
	for name, m := range map[string]peer.Method{"twice": echo("there"), "no name": echo(""),
		"long": echo(strings.Repeat("m", 65)), "no handler": {Name: "none"}, "unbounded": huge} {
		if err := n.Handle(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.open(t, net)
	wantCode(t, n.Handle(echo("late")), fault.Invalid)
	wantCode(t, n.Open(), fault.Invalid)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, n.Open(), fault.Unavailable)
}

func TestOptions_AreChecked(t *testing.T) {
	net := newNetwork(false)
	for name, breakIt := range map[string]func(*peer.Options){
		"no identity":   func(o *peer.Options) { o.Self = nil },
		"no resolver":   func(o *peer.Options) { o.Resolve = nil },
		"no logger":     func(o *peer.Options) { o.Logger = nil },
		"no metrics":    func(o *peer.Options) { o.Registerer = nil },
		"hasty":         func(o *peer.Options) { o.Timing.Dead = o.Timing.Ping + 1; o.Timing.Ping = time.Second },
		"too many":      func(o *peer.Options) { o.Limits.InFlight = peer.MaxInFlight/2 + 1 },
		"negative":      func(o *peer.Options) { o.Limits.Pending = -1 },
		"blind TLS":     func(o *peer.Options) { o.TLS = noTLS },
		"twice metered": func(o *peer.Options) { _, _ = peer.New(*o) },
	} {
		_, o := make1(t, net, "a")
		breakIt(&o)
		if _, err := peer.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func noTLS() (server, client *tls.Config) { return nil, nil }
