package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/internal/trust"
)

// A certificate that is not valid yet is refused. When it becomes valid, it comes into effect, although its file has
// not changed.
func TestCredentials_RefusedFilesAreTriedAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	begin := time.Now().Truncate(time.Second)
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: begin.Add(-time.Hour), NotAfter: begin.Add(100 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	testutil.Must(t, err)
	issue := func(serial int64, from time.Time) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		testutil.Must(t, err)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		testutil.Must(t, err)
		cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial),
			NotBefore: from, NotAfter: begin.Add(50 * time.Hour),
			URIs:        []*url.URL{{Scheme: "quorate", Opaque: "node:n"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}},
			authority, key.Public(), authorityKey)
		testutil.Must(t, err)
		write("key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
		write("cert", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	}
	issue(2, begin.Add(-time.Hour))
	f := Files{Token: write("token", []byte(trust.NewToken().Reveal())), Key: filepath.Join(dir, "key"),
		Cert: filepath.Join(dir, "cert"),
		CA:   write("ca", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	now := begin
	c, err := Open(f, Options{Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		Registerer: prometheus.NewRegistry()})
	testutil.Must(t, err)
	_, err = c.Identify(trust.Identity{Node: "n"})
	testutil.Must(t, err)
	issue(3, begin.Add(10*time.Minute))
	for _, step := range []struct {
		after   time.Duration
		changed bool
		refused bool
	}{
		{0, false, true}, {5 * time.Minute, false, true}, {11 * time.Minute, true, false},
		{12 * time.Minute, false, false},
	} {
		now = begin.Add(step.after)
		if changed := c.reload(); changed != step.changed || (c.problem.Load() != nil) != step.refused {
			t.Errorf("after %v: changed is %v, the problem is %v", step.after, changed, c.problem.Load())
		}
	}
}
