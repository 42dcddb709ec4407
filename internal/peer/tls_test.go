package peer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

// authority signs certificates for server ids.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	a.cert, a.key = sign(t, template, nil, nil)
	a.pool.AddCert(a.cert)
	return a
}

func sign(t testing.TB, template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) issue(t testing.TB, server string) tls.Certificate {
	t.Helper()
	cert, key := sign(t, &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{server},
		NotAfter: time.Now().Add(time.Hour)}, a.cert, a.key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// secured returns a setup with a certificate of a server, signed by a.
func secured(t testing.TB, a *authority, server string) setup {
	cert := a.issue(t, server)
	return options(func(o *peer.Options) {
		o.TLS = func() (server, client *tls.Config) {
			return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert,
					ClientCAs: a.pool},
				&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: a.pool}
		}
		o.VerifyPeer = func(state tls.ConnectionState, server string) (peer.Caller, error) {
			names := state.PeerCertificates[0].DNSNames
			if !slices.Contains(names, server) {
				return peer.Caller{}, fault.New(fault.Denied, "test.verify", "it is for "+names[0])
			}
			return peer.Caller{Node: "node of " + names[0], Apps: []string{"spiffe://public/ns/default/shop"}}, nil
		}
	})
}

func TestTLS_CertificateIsValidForItsServerOnly(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	net := newNetwork(false)
	var seen peer.Peer
	methods := []peer.Method{{Name: "echo", Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		seen = r.From
		return r.Payload, nil
	}}}
	b := start(t, net, "b", methods, secured(t, ours, "b"))
	start(t, net, "impostor", methods, secured(t, ours, "b"))
	start(t, net, "plain", methods)
	for _, c := range []struct {
		what   string
		id, to string
		cert   setup
		want   peer.Reason // 0 = accepted; ReasonMalformed = the handshake fails for a cause of package tls
	}{
		{"its own", "a", "b", secured(t, ours, "a"), 0},
		{"of another server", "a", "b", secured(t, ours, "c"), peer.ReasonCertificate},
		{"of another authority", "a", "b", secured(t, theirs, "a"), peer.ReasonMalformed},
		{"none", "a", "b", options(func(*peer.Options) {}), peer.ReasonPlain},
		{"its own, but the callee has another's", "a", "impostor", secured(t, ours, "a"), peer.ReasonMalformed},
		{"its own, but the callee has none", "a", "plain", secured(t, ours, "a"), peer.ReasonPlain},
		{"no configuration", "a", "b", options(func(o *peer.Options) {
			o.TLS, o.VerifyPeer = noTLS, noVerify
		}), peer.ReasonMalformed},
		{"no configuration, to a callee without", "a", "plain", options(func(o *peer.Options) {
			o.TLS, o.VerifyPeer = noTLS, noVerify
		}), peer.ReasonMalformed},
	} {
		a := start(t, net, c.id, nil, c.cert)
		_, err := a.Client().Call(within(t, time.Minute), c.to, "echo", nil)
		reason, refused := peer.RefusedBecause(err)
		switch {
		case c.want == 0 && err != nil, c.want != 0 && !fault.Is(err, fault.Unavailable):
			t.Errorf("%s: %v", c.what, err)
		case c.want != 0 && c.want != peer.ReasonMalformed && reason != c.want, c.want == peer.ReasonMalformed &&
			refused:
			t.Errorf("%s: refused because of %v: %v", c.what, reason, err)
		}
		_ = a.Close()
	}
	if seen.TLS == nil || seen.TLS.PeerCertificates[0].DNSNames[0] != "a" {
		t.Error("the handler does not see the certificate of its caller")
	}
	if c := seen.Caller; c.Server != "a" || c.Node != "node of a" || len(c.Apps) != 1 || !c.Proven {
		t.Errorf("the handler sees the caller %+v", c)
	}
	eventually(t, "refusals are counted", func() bool {
		return b.metric(t, "refused_total", "reason", "certificate", "direction", "inbound") == 1 &&
			b.metric(t, "refused_total", "reason", "tls", "direction", "inbound") >= 1 &&
			b.metric(t, "refused_total", "reason", "plain", "direction", "inbound") == 1
	})
}

func noVerify(tls.ConnectionState, string) (peer.Caller, error) { return peer.Caller{}, nil }

// TestTLS_CallerVerifiesCalleeCertificate uses a client configuration without a ServerName, as for certificates
// without host names.
func TestTLS_CallerVerifiesCalleeCertificate(t *testing.T) {
	ours := newAuthority(t)
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{echo("echo")}, secured(t, ours, "c"))
	a := start(t, net, "a", nil, secured(t, ours, "a"), options(func(o *peer.Options) {
		inner := o.TLS
		o.TLS = func() (server, client *tls.Config) {
			server, client = inner()
			client.InsecureSkipVerify = true
			return server, client
		}
	}))
	_, err := a.Client().Call(within(t, time.Minute), "b", "echo", nil)
	wantReason(t, err, peer.ReasonCertificate)
}

func TestTLS_LargeAndConcurrentCalls(t *testing.T) {
	ours := newAuthority(t)
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{echo("echo")}, secured(t, ours, "b"))
	a := start(t, net, "a", nil, secured(t, ours, "a"))
	done := make(chan error, 50)
	for i := range 50 {
		go func() {
			got, err := a.Client().Call(within(t, 2*time.Minute), "b", "echo", make([]byte, i*10_000))
			if err == nil && len(got) != i*10_000 {
				t.Errorf("%d bytes came back, want %d", len(got), i*10_000)
			}
			done <- err
		}()
	}
	for range 50 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
