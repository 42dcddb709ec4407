package peer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/trust"
)

// record is a log that tests can read.
type record struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *record) has(words ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.b.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// wall is a clock that can be moved.
type wall struct{ offset atomic.Int64 }

func (w *wall) now() time.Time      { return time.Now().Add(time.Duration(w.offset.Load())) }
func (w *wall) add(d time.Duration) { w.offset.Add(int64(d)) }

func keeper(t testing.TB, w *wall, id trust.Identity, tokens ...trust.Token) *trust.Keeper {
	t.Helper()
	k, err := trust.NewKeeper(trust.Material{Tokens: tokens}, trust.Timing{}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Identify(id); err != nil {
		t.Fatal(err)
	}
	return k
}

// trusting secures a port as a node does.
func trusting(k *trust.Keeper, log io.Writer) setup {
	return options(func(o *peer.Options) {
		verdict := func(err error) error {
			doubt, _ := trust.DoubtOf(err)
			return peer.Distrust(map[trust.Doubt]peer.Reason{trust.Foreign: peer.ReasonAuthority,
				trust.Untimed: peer.ReasonExpired, trust.Unfit: peer.ReasonCertificate}[doubt], err)
		}
		o.TLS = func() (server, client *tls.Config) {
			server, client = k.Server("test"), k.Client("test")
			server.VerifyConnection = nil
			check := client.VerifyConnection
			client.VerifyConnection = func(s tls.ConnectionState) error {
				if err := check(s); err != nil {
					return verdict(err)
				}
				return nil
			}
			return server, client
		}
		o.VerifyPeer = func(s tls.ConnectionState, server string) (peer.Caller, error) {
			id, err := k.Verify(s, server)
			if err != nil {
				return peer.Caller{}, verdict(err)
			}
			return peer.Caller{Node: id.Node}, nil
		}
		if log != nil {
			o.Logger = slog.New(slog.NewTextHandler(log, nil))
		}
	})
}

func named(node string) trust.Identity { return trust.Identity{Node: node, Server: node} }

func TestTrust_RefusalIsExplainedAndLoggedOnBothSides(t *testing.T) {
	clock, token, other := &wall{}, trust.NewToken(), trust.NewToken()
	behind := &wall{}
	behind.add(-26 * time.Hour)
	for _, c := range []struct {
		what   string
		dial   func(io.Writer) setup
		accept func(io.Writer) setup // nil = with the token
		want   peer.Reason
		told   string // part of the error and of the log of the dialler
		log    string // part of the log of the acceptor
		reason string // the reason that the acceptor counts
	}{
		{what: "another token", dial: func(w io.Writer) setup {
			return trusting(keeper(t, clock, named("a"), other), w)
		},
			want: peer.ReasonAuthority, told: "this node accepts " + other.Fingerprint(),
			log: "does not accept this node's certificate", reason: "tls"},
		{what: "a token that the acceptor does not know any more", dial: func(w io.Writer) setup {
			return trusting(keeper(t, clock, named("a"), other, token), w)
		},
			want: peer.ReasonAuthority, told: "was issued under cluster token \"" + other.Fingerprint(),
			log: "was issued under cluster token", reason: "authority"},
		{what: "a certificate that has expired", dial: func(w io.Writer) setup {
			k := keeper(t, behind, named("a"), token)
			return func(o *peer.Options, n *node) { trusting(k, w)(o, n); lenient(o) }
		}, want: peer.ReasonExpired, told: "has expired", log: "has expired", reason: "expired"},
		{what: "another server's certificate", dial: func(w io.Writer) setup {
			return trusting(keeper(t, clock, named("c"), token), w)
		},
			want: peer.ReasonCertificate, told: `the certificate of server "c", not of "a"`,
			log: `the certificate of server \"c\", not of \"a\"`, reason: "certificate"},
		{what: "the acceptor has another's", dial: func(w io.Writer) setup {
			return trusting(keeper(t, clock, named("a"), token), w)
		},
			accept: func(w io.Writer) setup { return trusting(keeper(t, clock, named("d"), token), w) },
			want:   peer.ReasonCertificate, told: `the certificate of server "d", not of "b"`},
		{what: "no token", dial: func(w io.Writer) setup { return logging(w) },
			want: peer.ReasonPlain, told: "start the caller with the --cluster-token-file",
			log: `which claims to be \"a\", is not`, reason: "plain"},
		{what: "the acceptor has no token", dial: func(w io.Writer) setup {
			return trusting(keeper(t, clock, named("a"), token), w)
		}, accept: logging,
			want: peer.ReasonPlain, told: "this node is secured, but server",
			log: "the caller is secured, but server", reason: "plain"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNetwork(false)
			var here, there record
			accept := trusting(keeper(t, clock, named("b"), token), &there)
			if c.accept != nil {
				accept = c.accept(&there)
			}
			b := start(t, n, "b", []peer.Method{echo("echo")}, accept)
			a := start(t, n, "a", nil, c.dial(&here))
			_, err := a.Client().Call(within(t, time.Minute), "b", "echo", nil)
			wantCode(t, err, fault.Unavailable)
			wantReason(t, err, c.want)
			if !strings.Contains(fault.Text(err), c.told) ||
				!here.has("level=WARN", "server=b", "reason="+c.want.String()) {
				t.Errorf("the dialler's error: %v; its log: %s", fault.Text(err), here.String())
			}
			if c.log == "" {
				return
			}
			eventually(t, "the acceptor names it: "+c.log, func() bool {
				return there.has("level=WARN", "remote=127.0.0.1:", c.log)
			})
			if b.metric(t, "refused_total", "reason", c.reason, "direction", "inbound") != 1 {
				t.Errorf("it is not counted as %s: %s", c.reason, there.String())
			}
		})
	}
}

func logging(w io.Writer) setup {
	return options(func(o *peer.Options) { o.Logger = slog.New(slog.NewTextHandler(w, nil)) })
}

// lenient makes a port accept any certificate, as if its clock were wrong, so that the other side has to detect the
// problem.
func lenient(o *peer.Options) {
	inner := o.TLS
	o.TLS = func() (server, client *tls.Config) {
		server, client = inner()
		client.VerifyConnection, client.Time = nil, nil
		return server, client
	}
	o.VerifyPeer = func(tls.ConnectionState, string) (peer.Caller, error) { return peer.Caller{}, nil }
}

func TestTrust_SecuredPortRefusesPlainConnection(t *testing.T) {
	n := newNetwork(false)
	var log record
	b := start(t, n, "b", []peer.Method{echo("echo")}, trusting(keeper(t, &wall{}, named("b"), trust.NewToken()), &log))
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "qqqqqqqqqqqqqqqqqqqqqqqqqqq",
		"\x16\x03\x01\x00\x05hello\x00\x00", "\x00"} {
		c, err := net.Dial("tcp", b.addr) //nolint:noctx // to ourselves
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if answer, err := io.ReadAll(c); len(answer) > 16 || errIsTimeout(err) {
			t.Errorf("%q is answered by %q %v", text, answer, err)
		}
		_ = c.Close()
	}
	eventually(t, "all are counted", func() bool {
		return b.metric(t, "refused_total", "direction", "inbound") == 4 &&
			log.has("peer connection refused", "127.0.0.1")
	})
}

func errIsTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // of the connection itself
	return ok && e.Timeout()
}

// TestRenewal_LosesNoCall renews while a slow call runs. Short calls run all the time, in both directions.
func TestRenewal_LosesNoCall(t *testing.T) {
	clock, old, next := &wall{}, trust.NewToken(), trust.NewToken()
	n := newNetwork(false)
	ka, kb := keeper(t, clock, named("a"), old, next), keeper(t, clock, named("b"), old, next)
	hold := make(chan struct{})
	slow := peer.Method{Name: "slow", Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
		select {
		case <-hold:
			return []byte("done"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	a := start(t, n, "a", []peer.Method{echo("echo")}, trusting(ka, nil))
	b := start(t, n, "b", []peer.Method{echo("echo"), slow}, trusting(kb, nil))
	outcome := make(chan error, 1)
	go func() {
		got, err := a.Client().Call(context.Background(), "b", "slow", nil)
		if err == nil && string(got) != "done" {
			err = fmt.Errorf("answer %q", got)
		}
		outcome <- err
	}()
	eventually(t, "it runs", func() bool { return b.metric(t, "rpc_in_flight", "side", "server") == 1 })
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var calls atomic.Int64
	for _, way := range []struct {
		from *node
		to   string
	}{{a, "b"}, {a, "b"}, {b, "a"}, {b, "a"}} {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := way.from.Client().Call(context.Background(), way.to, "echo",
					make([]byte, 100+i%2*100_000)); err != nil {
					t.Errorf("call %d to %s: %v", i, way.to, err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for i := range 10 {
		before := calls.Load()
		m := trust.Material{Tokens: []trust.Token{next, old}}
		if i%2 == 1 {
			m.Tokens = []trust.Token{old, next}
		}
		for _, side := range []struct {
			k *trust.Keeper
			n *node
		}{{ka, a}, {kb, b}} {
			if err := side.k.Replace(m); err != nil {
				t.Fatal(err)
			}
			side.n.Renew()
			side.n.Recheck()
		}
		eventually(t, "calls go on", func() bool { return calls.Load() > before+20 })
	}
	close(hold)
	if err := <-outcome; err != nil {
		t.Errorf("the call that spans everything: %v", err)
	}
	stop()
	wg.Wait()
	eventually(t, "the old connections end", func() bool {
		return a.metric(t, "connections")+b.metric(t, "connections") <= 8
	})
}

func TestRenewal_IsSeenByPeer(t *testing.T) {
	clock, token := &wall{}, trust.NewToken()
	n := newNetwork(false)
	var mu sync.Mutex
	var ends []time.Time
	saw := peer.Method{Name: "saw", Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		ends = append(ends, r.From.TLS.PeerCertificates[0].NotAfter)
		return nil, nil
	}}
	ka, kb := keeper(t, clock, named("a"), token), keeper(t, clock, named("b"), token)
	a, b := start(t, n, "a", nil, trusting(ka, nil)), start(t, n, "b", []peer.Method{saw}, trusting(kb, nil))
	for range 3 {
		if _, err := a.Client().Call(within(t, time.Minute), "b", "saw", nil); err != nil {
			t.Fatal(err)
		}
		clock.add(17 * time.Hour)
		for _, side := range []struct {
			k *trust.Keeper
			n *node
		}{{ka, a}, {kb, b}} {
			if changed, err := side.k.Renew(); err != nil || !changed {
				t.Fatal(changed, err)
			}
			side.n.Renew()
			side.n.Recheck()
		}
	}
	if !ends[0].Before(ends[1]) || !ends[1].Before(ends[2]) {
		t.Errorf("the ends of the certificates seen: %v", ends)
	}
}

func TestTrust_RevokedPeerIsCut(t *testing.T) {
	clock, old, next := &wall{}, trust.NewToken(), trust.NewToken()
	n := newNetwork(false)
	var log record
	kb := keeper(t, clock, named("b"), old, next)
	a := start(t, n, "a", nil, trusting(keeper(t, clock, named("a"), old), nil))
	b := start(t, n, "b", []peer.Method{echo("echo")}, trusting(kb, &log))
	if _, err := a.Client().Call(within(t, time.Minute), "b", "echo", nil); err != nil {
		t.Fatal(err)
	}
	b.Recheck()
	if _, err := a.Client().Call(within(t, time.Minute), "b", "echo", nil); err != nil ||
		b.metric(t, "connections") != 1 {
		t.Fatalf("a connection that is trusted was cut: %v", err)
	}
	if err := kb.Replace(trust.Material{Tokens: []trust.Token{next}}); err != nil {
		t.Fatal(err)
	}
	b.Recheck()
	eventually(t, "it is cut off, named and counted", func() bool {
		return b.metric(t, "connections") == 0 && log.has("peer connection ended", "server=a", old.Fingerprint()) &&
			b.metric(t, "refused_total", "reason", "authority") == 1
	})
}

// TestRenewal_LosesNoRaftRequest checks that requests of groups are repeated on another connection.
func TestRenewal_LosesNoRaftRequest(t *testing.T) {
	clock, token := &wall{}, trust.NewToken()
	n := newNetwork(false)
	a := start(t, n, "a", nil, trusting(keeper(t, clock, named("a"), token), nil))
	b := start(t, n, "b", nil, trusting(keeper(t, clock, named("b"), token), nil))
	ta, err := a.Raft(1)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := b.Raft(1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case r := <-tb.Consumer():
				r.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-done:
				return
			}
		}
	}()
	defer close(done)
	renewals, failed := make(chan struct{}), make(chan struct{})
	var count atomic.Int64
	go func() {
		defer close(renewals)
		for range 20 { // each renewal happens in the middle of requests, however slow these are
			a.Renew()
			b.Renew()
			for before := count.Load(); count.Load() < before+3; {
				select {
				case <-failed:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}
	}()
	for running := true; running; {
		select {
		case <-renewals:
			running = false
		default:
		}
		n := uint64(count.Add(1))
		var resp raft.AppendEntriesResponse
		if err := ta.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: n,
			Entries: []*raft.Log{{Index: n}}}, &resp); err != nil {
			close(failed)
			t.Errorf("request %d: %v", n, err)
			break
		}
	}
}
