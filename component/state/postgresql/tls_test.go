package postgresql_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// certificate returns a self-signed certificate for an address, and its key.
func certificate(t *testing.T, ip net.IP) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "postgresql"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{ip},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testutil.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	testutil.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// encrypt restarts a server with TLS. It returns the file of its authority.
func (s *server) encrypt(ip net.IP) string {
	s.t.Helper()
	public, private := certificate(s.t, ip)
	for name, text := range map[string][]byte{"server.crt": public, "server.key": private} {
		path := filepath.Join(s.data, name)
		testutil.Must(s.t, os.WriteFile(path, text, 0o600))
		if uid, gid, other := owner(s.t); other {
			testutil.Must(s.t, os.Chown(path, int(uid), int(gid)))
		}
	}
	s.shutDown()
	s.configure("ssl = on")
	testutil.Must(s.t, os.WriteFile(filepath.Join(s.data, "pg_hba.conf"),
		[]byte("host all all 127.0.0.1/32 trust\n"), 0o600))
	s.run()
	s.wait()
	return filepath.Join(s.data, "server.crt")
}

func TestOpen_TLS(t *testing.T) {
	t.Parallel()
	s, elsewhere, plain := start(t), start(t), start(t)
	authority := s.encrypt(net.IPv4(127, 0, 0, 1))
	foreign := elsewhere.encrypt(net.IPv4(127, 0, 0, 9))
	at := func(s *server, mode string) string {
		return "host=127.0.0.1 user=postgres dbname=postgres sslmode=" + mode + " port=" + s.port
	}
	for _, mode := range []string{"require", "verify-ca", "verify-full"} {
		store := opened(t, postgresql.V2, "connectionString", at(s, mode), "sslRootCert", authority)
		testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||"+mode, "1")))
		statetest.WantValue(t, store, "a||"+mode, "1")
	}
	if got := s.do("SELECT count(*) > 2 FROM pg_stat_ssl WHERE ssl"); got != "true" {
		t.Error("the connections are not encrypted")
	}
	opened(t, postgresql.V2, "connectionString", at(elsewhere, "verify-ca"), "sslRootCert", foreign)
	for name, c := range map[string]struct {
		connection, authority string
		want                  []string
	}{
		"another authority":  {at(s, "verify-full"), foreign, []string{"is not trusted", "sslRootCert"}},
		"no authority":       {at(s, "verify-full"), "", []string{"is not trusted", "sslRootCert"}},
		"another host":       {at(elsewhere, "verify-full"), foreign, []string{"is for another host", "verify-ca"}},
		"a server without":   {at(plain, "verify-full"), authority, []string{"does not speak TLS", "sslmode"}},
		"an authority as CA": {at(s, "verify-ca"), foreign, []string{"is not trusted"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pairs := []string{"connectionString", c.connection}
			if c.authority != "" {
				pairs = append(pairs, "sslRootCert", c.authority)
			}
			err := briefly(t, postgresql.V2, pairs...)
			if err == nil {
				t.Fatal("the store opens")
			}
			statetest.WantFault(t, err, fault.Unavailable, c.want...)
		})
	}
	missing := briefly(t, postgresql.V2, "connectionString", at(s, "verify-full"), "sslRootCert", "/nowhere/ca.pem")
	statetest.WantFault(t, missing, fault.Invalid, "sslRootCert", "/nowhere/ca.pem")
}
