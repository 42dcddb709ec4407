package trust_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
)

// clock is set by tests.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)} }

func (c *clock) now() time.Time              { return c.at }
func (c *clock) add(d time.Duration)         { c.at = c.at.Add(d) }
func tokens(t ...trust.Token) trust.Material { return trust.Material{Tokens: t} }

func identity(node string, apps ...string) trust.Identity {
	id := trust.Identity{Node: node, Server: node + ".d1"}
	for _, a := range apps {
		id.Apps = append(id.Apps, trust.NewApp("", "", a))
	}
	return id
}

func keep(t testing.TB, m trust.Material, c *clock, id trust.Identity) *trust.Keeper {
	t.Helper()
	k, err := trust.NewKeeper(m, trust.Timing{}, c.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Identify(id); err != nil {
		t.Fatal(err)
	}
	return k
}

// meeting is the outcome of a handshake.
type meeting struct {
	atDialler, atAcceptor error
	client, server        tls.ConnectionState
}

// meet performs a handshake of two nodes and returns what each reports of the other.
func meet(t testing.TB, dialler, acceptor *trust.Keeper) meeting {
	t.Helper()
	a, b := wire(t)
	done := make(chan error, 1)
	conf := acceptor.Server("test/1")
	conf.VerifyConnection = nil // the acceptor verifies afterwards, so that both report
	s := tls.Server(b, conf)
	c := tls.Client(a, dialler.Client("test/1"))
	go func() {
		err := s.Handshake()
		if err != nil {
			_ = b.Close()
		}
		done <- err
	}()
	var m meeting
	if m.atDialler = c.Handshake(); m.atDialler != nil {
		_ = a.Close()
	}
	m.atAcceptor = <-done
	m.client, m.server = c.ConnectionState(), s.ConnectionState()
	_, _ = a.Close(), b.Close()
	return m
}

// wire returns the two ends of a connection over loopback.
func wire(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil { //nolint:noctx // to ourselves
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// judge returns the acceptor's error about the dialler.
func judge(t testing.TB, dialler, acceptor *trust.Keeper, server string) error {
	t.Helper()
	m := meet(t, dialler, acceptor)
	if m.atAcceptor != nil {
		return m.atAcceptor
	}
	_, err := acceptor.Verify(m.server, server)
	return err
}

func wantDoubt(t testing.TB, err error, want trust.Doubt, words ...string) {
	t.Helper()
	got, ok := trust.DoubtOf(err)
	if !ok || got != want || !fault.Is(err, fault.Denied) {
		t.Errorf("doubt %q, want %q: %v", got, want, err)
	}
	for _, w := range words {
		if !strings.Contains(fault.Text(err), w) {
			t.Errorf("%q is missing in: %v", w, fault.Text(err))
		}
	}
}

func TestHandshake_NodesOfOneToken(t *testing.T) {
	c, token := newClock(), trust.NewToken()
	a, b := keep(t, tokens(token), c, identity("n1", "shop", "cart")), keep(t, tokens(token), c, identity("n2"))
	m := meet(t, a, b)
	if m.atDialler != nil || m.atAcceptor != nil {
		t.Fatal(m.atDialler, m.atAcceptor)
	}
	if m.client.Version != tls.VersionTLS13 {
		t.Errorf("version %x", m.client.Version)
	}
	id, err := b.Verify(m.server, "n1.d1")
	if err != nil || id.Node != "n1" || len(id.Apps) != 2 || id.Apps[1].String() != "spiffe://public/ns/default/cart" {
		t.Errorf("the acceptor sees %+v %v", id, err)
	}
	if id, err := a.Verify(m.client, "n2.d1"); err != nil || id.Node != "n2" || len(id.Apps) != 0 {
		t.Errorf("the dialler sees %+v %v", id, err)
	}
	for _, other := range []string{"n3.d1", "n1.d2", "n1", "n1.d1.x", ""} {
		_, err := b.Verify(m.server, other)
		wantDoubt(t, err, trust.Unfit, `"n1.d1"`)
	}
}

func TestHandshake_RefusesOtherToken(t *testing.T) {
	c := newClock()
	ours, theirs := trust.NewToken(), trust.NewToken()
	a, b := keep(t, tokens(ours), c, identity("n1")), keep(t, tokens(theirs), c, identity("n2"))
	m := meet(t, a, b)
	wantDoubt(t, m.atDialler, trust.Foreign, theirs.Fingerprint(), ours.Fingerprint(), `"n2"`, "--cluster-token-file")
	if m.atAcceptor == nil || !strings.Contains(m.atAcceptor.Error(), "bad certificate") {
		t.Errorf("the acceptor got %v", m.atAcceptor)
	}
	both := keep(t, tokens(ours, theirs), c, identity("n3"))
	wantDoubt(t, judge(t, both, b, "n3.d1"), trust.Foreign, ours.Fingerprint())
	if err := judge(t, b, both, "n2.d1"); err == nil {
		t.Error("the dialler accepted a certificate of another token")
	}
}

func TestReplace_ExchangesTokensInThreeSteps(t *testing.T) {
	c := newClock()
	old, next := trust.NewToken(), trust.NewToken()
	steps := []trust.Material{tokens(old), tokens(old, next), tokens(next, old), tokens(next)}
	for i, m := range steps {
		for _, n := range steps[max(0, i-1):min(len(steps), i+2)] {
			a, b := keep(t, m, c, identity("n1")), keep(t, n, c, identity("n2"))
			if got := meet(t, a, b); got.atDialler != nil || got.atAcceptor != nil {
				t.Errorf("%v with %v: %v %v", i, n, got.atDialler, got.atAcceptor)
			} else if _, err := b.Verify(got.server, "n1.d1"); err != nil {
				t.Errorf("%v with %v: %v", i, n, err)
			}
		}
	}
}

func TestReplace_RefusesWithdrawnToken(t *testing.T) {
	c := newClock()
	old, next := trust.NewToken(), trust.NewToken()
	a, b := keep(t, tokens(old), c, identity("n1")), keep(t, tokens(old, next), c, identity("n2"))
	m := meet(t, a, b)
	if _, err := b.Verify(m.server, "n1.d1"); err != nil {
		t.Fatal(err)
	}
	if err := b.Replace(tokens(next)); err != nil {
		t.Fatal(err)
	}
	_, err := b.Verify(m.server, "n1.d1")
	wantDoubt(t, err, trust.Foreign)
	if got := b.Status().Tokens; len(got) != 1 || got[0] != next.Fingerprint() {
		t.Errorf("tokens %v", got)
	}
}

func TestCertificate_IsValidForADay(t *testing.T) {
	c, token := newClock(), trust.NewToken()
	a, b := keep(t, tokens(token), c, identity("n1")), keep(t, tokens(token), c, identity("n2"))
	first := a.Status().NotAfter
	if want := c.now().Add(24 * time.Hour); !first.Equal(want) {
		t.Errorf("it holds until %v, want %v", first, want)
	}
	m := meet(t, a, b)
	c.add(-59 * time.Minute) // the clock of the other node is behind
	if _, err := b.Verify(m.server, "n1.d1"); err != nil {
		t.Errorf("an hour earlier: %v", err)
	}
	c.add(-2 * time.Minute)
	_, err := b.Verify(m.server, "n1.d1")
	wantDoubt(t, err, trust.Untimed, "is valid from", "clock")
	c.add(61*time.Minute + 23*time.Hour)
	if _, err := b.Verify(m.server, "n1.d1"); err != nil {
		t.Errorf("an hour before its end: %v", err)
	}
	c.add(time.Hour + time.Minute)
	_, err = b.Verify(m.server, "n1.d1")
	wantDoubt(t, err, trust.Untimed, "has expired at", "clock")
}

func TestRenew_AfterTwoThirdsOrClockSetBack(t *testing.T) {
	c := newClock()
	k := keep(t, tokens(trust.NewToken()), c, identity("n1"))
	for _, step := range []struct {
		by   time.Duration
		want bool
	}{{0, false}, {15 * time.Hour, false}, {time.Hour + time.Second, true}, {0, false}, {-20 * time.Minute,
		false}, {-20 * time.Minute, true}, {0, false}, {100 * time.Hour, true}} {
		c.add(step.by)
		changed, err := k.Renew()
		if err != nil || changed != step.want {
			t.Errorf("after %v: %v %v", step.by, changed, err)
		}
		if end := k.Status().NotAfter; end.Before(c.now()) {
			t.Errorf("after %v: its end is %v", step.by, end)
		}
	}
}

func TestIdentify_NewApplicationMakesNewCertificate(t *testing.T) {
	c, token := newClock(), trust.NewToken()
	a, b := keep(t, tokens(token), c, identity("n1", "shop")), keep(t, tokens(token), c, identity("n2"))
	if changed, err := a.Identify(identity("n1", "shop")); changed || err != nil {
		t.Errorf("the same again: %v %v", changed, err)
	}
	if changed, err := a.Identify(identity("n1", "shop", "cart")); !changed || err != nil {
		t.Errorf("another application: %v %v", changed, err)
	}
	m := meet(t, a, b)
	if id, err := b.Verify(m.server, "n1.d1"); err != nil || len(id.Apps) != 2 {
		t.Errorf("%+v %v", id, err)
	}
	for _, bad := range []trust.Identity{{}, {Node: "n1", Apps: []trust.App{trust.NewApp("", "", "a/b")}},
		{Node: "n1", Apps: []trust.App{trust.NewApp("x y", "", "a")}}} {
		if _, err := a.Identify(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestKeeper_NoConfigurationWithoutCertificate(t *testing.T) {
	k, err := trust.NewKeeper(tokens(trust.NewToken()), trust.Timing{}, newClock().now)
	if err != nil || k.Client("x") != nil || k.Server("x") != nil {
		t.Errorf("there is one, %v", err)
	}
	if _, err := trust.NewKeeper(trust.Material{}, trust.Timing{}, newClock().now); !fault.Is(err, fault.Invalid) {
		t.Errorf("no tokens: %v", err)
	}
}

// elsewhere is an external authority.
type elsewhere struct {
	t    testing.TB
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	c    *clock
}

func newElsewhere(t testing.TB, name string, c *clock) *elsewhere {
	e := &elsewhere{t: t, name: name, c: c}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: c.now().Add(-time.Hour), NotAfter: c.now().Add(1000 * time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	e.cert, e.key = e.sign(template, nil, nil)
	return e
}

func (e *elsewhere) sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		e.t.Fatal(err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		e.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		e.t.Fatal(err)
	}
	return cert, key
}

// pair returns a certificate of e that change has modified. The pair accepts e and the authorities in roots.
func (e *elsewhere) pair(change func(*x509.Certificate), roots ...*elsewhere) *trust.Pair {
	e.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "n1"},
		NotBefore: e.c.now().Add(-time.Hour), NotAfter: e.c.now().Add(10 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	change(template)
	cert, key := e.sign(template, e.cert, e.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		e.t.Fatal(err)
	}
	var ca []byte
	for _, r := range append(roots, e) {
		ca = append(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.cert.Raw})...)
	}
	p, err := trust.ReadPair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), ca)
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

func uri(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestExternalCertificate_NamesNodeByURIOrDNSName(t *testing.T) {
	c, token := newClock(), trust.NewToken()
	e := newElsewhere(t, "Corp CA", c)
	byURI := func(n *x509.Certificate) {
		n.URIs = []*url.URL{uri(t, "quorate:node:n1"), uri(t, "spiffe://corp/ns/prod/shop"),
			uri(t, "spiffe://corp/other")}
	}
	byName := func(n *x509.Certificate) { n.DNSNames = []string{"n2", "n2.example"} }
	a := keep(t, trust.Material{Tokens: []trust.Token{token}, Own: e.pair(byURI)}, c, identity("n1"))
	b := keep(t, trust.Material{Tokens: []trust.Token{token}, Own: e.pair(byName)}, c, identity("n2"))
	m := meet(t, a, b)
	id, err := b.Verify(m.server, "n1.d7")
	if err != nil || id.Node != "n1" || id.Server != "n1.d7" || len(id.Apps) != 1 ||
		id.Apps[0] != trust.NewApp("corp", "prod", "shop") {
		t.Errorf("by URI: %+v %v", id, err)
	}
	if id, err := a.Verify(m.client, "n2.d1"); err != nil || id.Node != "n2" {
		t.Errorf("by DNS name: %+v %v", id, err)
	}
	_, err = b.Verify(m.server, "n2.d1")
	wantDoubt(t, err, trust.Unfit, `"n1"`, `"n2"`, "quorate:node:")
	if changed, err := a.Renew(); changed || err != nil || !a.Status().Own {
		t.Errorf("renewed: %v %v", changed, err)
	}
}

func TestIdentify_RefusesCertificateThatOthersWouldRefuse(t *testing.T) {
	c, token := newClock(), trust.NewToken()
	e, other := newElsewhere(t, "Corp CA", c), newElsewhere(t, "Other CA", c)
	named := func(n *x509.Certificate) { n.DNSNames = []string{"n1"} }
	for what, row := range map[string]struct {
		own  *trust.Pair
		want trust.Doubt
		text string
	}{
		"another node's": {e.pair(func(n *x509.Certificate) { n.DNSNames = []string{"n2"} }), trust.Unfit, "n2"},
		"expired": {e.pair(func(n *x509.Certificate) { named(n); n.NotAfter = c.now().Add(-time.Minute) }),
			trust.Untimed, "has expired"},
		"for one end only": {e.pair(func(n *x509.Certificate) { named(n); n.ExtKeyUsage = n.ExtKeyUsage[:1] }),
			trust.Unfit, "both ends"},
		"of no node": {e.pair(func(*x509.Certificate) {}), trust.Unfit, "quorate:node:"},
	} {
		k, err := trust.NewKeeper(trust.Material{Tokens: []trust.Token{token}, Own: row.own}, trust.Timing{}, c.now)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := k.Identify(identity("n1"))
		if changed || err == nil {
			t.Errorf("%s is taken: %v, %v", what, changed, err)
			continue
		}
		wantDoubt(t, err, row.want, row.text)
	}
	a := keep(t, trust.Material{Tokens: []trust.Token{token}, Own: e.pair(named)}, c, identity("n1"))
	b := keep(t, trust.Material{Tokens: []trust.Token{token}, Own: other.pair(named)}, c, identity("n1"))
	plain := keep(t, tokens(token), c, identity("n1"))
	m := meet(t, a, b)
	wantDoubt(t, m.atDialler, trust.Foreign, "Other CA", "--cluster-ca-file")
	m = meet(t, plain, b)
	wantDoubt(t, m.atDialler, trust.Foreign, "Other CA", "this node has a cluster token")
	m = meet(t, b, plain)
	wantDoubt(t, m.atDialler, trust.Foreign, "--cluster-ca-file")
	before := a.Status()
	if err := a.Replace(trust.Material{Tokens: []trust.Token{token},
		Own: e.pair(func(*x509.Certificate) {})}); err == nil || a.Status().NotAfter != before.NotAfter {
		t.Errorf("a bad certificate replaced a good one: %v", err)
	}
}

func TestReadPair_RefusesMismatchedFiles(t *testing.T) {
	for _, files := range [][3]string{{}, {"x", "y", "z"}} {
		if _, err := trust.ReadPair([]byte(files[0]), []byte(files[1]), []byte(files[2])); !fault.Is(err,
			fault.Invalid) {
			t.Errorf("%v: %v", files, err)
		}
	}
}
