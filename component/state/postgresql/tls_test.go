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
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// certificate returns a self-signed certificate for an address, and its key.
func certificate(t testing.TB, ip net.IP) (certificate, key []byte) {
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

// encrypt restarts a server with TLS. It returns the path of the file with the certificate's authority.
func encrypt(s *postgrestest.Server, ip net.IP) string {
	s.T.Helper()
	public, private := certificate(s.T, ip)
	for name, text := range map[string][]byte{"server.crt": public, "server.key": private} {
		path := filepath.Join(s.Data, name)
		testutil.Must(s.T, os.WriteFile(path, text, 0o600))
		if uid, gid, other := postgrestest.Owner(s.T); other {
			testutil.Must(s.T, os.Chown(path, int(uid), int(gid)))
		}
	}
	s.ShutDown()
	s.Configure("ssl = on")
	testutil.Must(s.T, os.WriteFile(filepath.Join(s.Data, "pg_hba.conf"),
		[]byte("host all all 127.0.0.1/32 trust\n"), 0o600))
	s.Run()
	s.Wait()
	return filepath.Join(s.Data, "server.crt")
}

func TestOpen_TLS(t *testing.T) {
	t.Parallel()
	s, elsewhere, plain := databases.Start(t), databases.Start(t), databases.Start(t)
	authority := encrypt(s, net.IPv4(127, 0, 0, 1))
	foreign := encrypt(elsewhere, net.IPv4(127, 0, 0, 9))
	at := func(s *postgrestest.Server, mode string) string {
		return "host=127.0.0.1 user=postgres dbname=postgres sslmode=" + mode + " port=" + s.Port
	}
	for _, mode := range []string{"require", "verify-ca", "verify-full"} {
		store := opened(t, postgresql.V2, "connectionString", at(s, mode), "sslRootCert", authority)
		testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||"+mode, "1")))
		statetest.WantValue(t, store, "a||"+mode, "1")
	}
	if got := s.Do("SELECT count(*) > 2 FROM pg_stat_ssl WHERE ssl"); got != "true" {
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
			statetest.WantOpenFault(t, opening(t, postgresql.V2, pairs...), fault.Unavailable, c.want...)
		})
	}
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", at(s, "verify-full"), "sslRootCert",
		"/nowhere/ca.pem"), fault.Invalid, "sslRootCert", "/nowhere/ca.pem")
}
