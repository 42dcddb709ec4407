package credentials_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// corporate is the certificate authority of a user. It issues certificates for nodes.
type corporate struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCorporate(t testing.TB) *corporate {
	c := &corporate{}
	c.cert, c.key = c.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "Corporate CA"}, IsCA: true,
		BasicConstraintsValid: true})
	return c
}

func (c *corporate) sign(t testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Minute)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, by := c.cert, c.key
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

// issue writes the certificate files of a node to a directory and sets them in conf.
func (c *corporate) issue(t testing.TB, conf *node.Config, dir, id string, end time.Time) {
	t.Helper()
	cert, key := c.sign(t, &x509.Certificate{URIs: []*url.URL{{Scheme: "quorate", Opaque: "node:" + id}},
		NotAfter:    end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	conf.Security.ClusterKeyFile = write("key.pem", "PRIVATE KEY", secret)
	conf.Security.ClusterCertFile = write("cert.pem", "CERTIFICATE", cert.Raw)
	conf.Security.ClusterCAFile = write("ca.pem", "CERTIFICATE", c.cert.Raw)
}

func TestCredentials_OwnCertificatesAreReplacedUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	withoutElection(t, replaceCertificates)
}

func replaceCertificates(t *testing.T) (before, after uint64) {
	token, corp := trust.NewToken(), newCorporate(t)
	dirs := map[string]string{}
	nodes, configs := nodetest.ThreeSecured(t, func(c *node.Config) {
		dirs[c.Cluster.NodeID] = t.TempDir()
		corp.issue(t, c, dirs[c.Cluster.NodeID], c.Cluster.NodeID, time.Now().Add(time.Hour))
	}, token)
	before = nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
	end := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	calls := underLoad(t, nodes, func() {
		for i := range configs {
			corp.issue(t, &configs[i], dirs[configs[i].Cluster.NodeID], configs[i].Cluster.NodeID, end)
			nodetest.Poll(t, func() error {
				if s := nodetest.Status(t, nodes[i]).Security; s.Nodes != "certificates" ||
					!s.CertificateEnds.Equal(end) {
					return fmt.Errorf("security %+v", s)
				}
				return nil
			})
			<-time.After(200 * time.Millisecond)
		}
	})
	after = nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
	if calls < 10 {
		t.Errorf("only %d calls", calls)
	}

	other := newCorporate(t)
	stranger := nodetest.Member(t, "x", 0, nodes[0].Addresses().Gossip)
	stranger.Security.ClusterTokenFile = nodetest.TokenFile(t, "", token)
	other.issue(t, &stranger, t.TempDir(), "x", time.Time{})
	var log nodetest.Log
	n := nodetest.OpenLogged(t, stranger, &log)
	nodetest.Poll(t, func() error {
		if _, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/healthz", ""); !strings.Contains(body, "Corporate CA") {
			return fmt.Errorf("health of a node of another authority: %s", body)
		}
		return nil
	})

	wrong := nodetest.Member(t, "n9", 0)
	wrong.Security.ClusterTokenFile = nodetest.TokenFile(t, "", token)
	corp.issue(t, &wrong, t.TempDir(), "n8", time.Time{})
	if _, err := node.Open(t.Context(), wrong, nodetest.Deps(t)); err == nil ||
		!strings.Contains(err.Error(), `the certificate of node "n8", not of "n9"`) {
		t.Errorf("another node's certificate: %v", err)
	}
	return before, after
}
