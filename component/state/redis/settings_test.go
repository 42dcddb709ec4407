package redis_test

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
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestOpen_RefusesContradictions(t *testing.T) {
	for want, pairs := range map[string][]string{
		"several addresses":    {"redisHost", "a,b"},
		"empty address":        {"redisHost", "a,", "redisType", "cluster"},
		"name different ports": {"redisHost", "a:1", "redisPort", "2"},
		"failover needs":       {"redisHost", "a", "failover", "true"},
		"without failover":     {"redisHost", "a", "sentinelMasterName", "m"},
		"fails over by itself": {"redisHost", "a", "failover", "true", "sentinelMasterName", "m",
			"redisType", "cluster"},
		"has one database":            {"redisHost", "a", "redisDB", "1", "redisType", "cluster"},
		"clusterHashTags is set":      {"redisHost", "a", "clusterHashTags", "true"},
		"without redisPassword":       {"redisHost", "a", "redisUsername", "u"},
		"not below readTimeout":       {"redisHost", "a", "replicas", "1", "replicaTimeout", "5s"},
		"replicaTimeout is not pos":   {"redisHost", "a", "replicas", "1", "replicaTimeout", "0"},
		"without enableTLS":           {"redisHost", "a", "caCert", "x"},
		"are not a pair":              {"redisHost", "a", "enableTLS", "true", "clientCert", "x", "clientKey", "y"},
		"caCert holds no certificate": {"redisHost", "a", "enableTLS", "true", "caCert", "x"},
	} {
		statetest.WantOpenFault(t, opening(t, pairs...), fault.Invalid, want)
	}
}

func TestFields_RefuseBadValues(t *testing.T) {
	for want, pairs := range map[string][]string{
		"redisHost":                  {},
		"1 to 65535":                 {"redisHost", "a", "redisPort", "70000"},
		"none of node, cluster":      {"redisHost", "a", "redisType", "sharded"},
		"readTimeout":                {"redisHost", "a", "readTimeout", "soon"},
		"Entra ID is not supported":  {"redisHost", "a", "useEntraID", "true"},
		"OIDC is not supported":      {"redisHost", "a", "useOIDC", "true"},
		"query API is not supported": {"redisHost", "a", "queryIndexes", "[]"},
		"from -1 to":                 {"redisHost", "a", "ttlInSeconds", "-2"},
	} {
		if _, err := checked(pairs...); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", pairs, err, want)
		}
	}
}

func TestFields_AcceptIntervalsOfDapr(t *testing.T) {
	for _, text := range []string{"500ms", "5s", "250", "0", "-1"} {
		if _, err := checked("redisHost", "a", "readTimeout", text, "idleTimeout", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOpen_TLS(t *testing.T) {
	certificate, key := certificates(t)
	folder := t.TempDir()
	for name, text := range map[string]string{"cert.pem": certificate, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := statetest.FreePort(t)
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", filepath.Join(folder, "cert.pem"), "--tls-key-file",
		filepath.Join(folder, "key.pem"), "--tls-ca-cert-file", filepath.Join(folder, "cert.pem"))
	address := "127.0.0.1:" + port
	store := opened(t, "redisHost", address, "enableTLS", "true", "caCert", certificate, "clientCert", certificate,
		"clientKey", key)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	statetest.WantValue(t, store, "a||k", "1")
	statetest.WantOpenFault(t, opening(t, "redisHost", address, "enableTLS", "true", "clientCert", certificate,
		"clientKey", key),
		fault.Unavailable, "is not trusted", "caCert")
	unverified := opened(t, "redisHost", address, "enableTLS", "true", "insecureSkipTLSVerify", "true", "clientCert",
		certificate, "clientKey", key)
	statetest.WantValue(t, unverified, "a||k", "1")
	plain := redistest.Start(t)
	statetest.WantOpenFault(t, opening(t, "redisHost", plain.Address, "enableTLS", "true", "dialTimeout", "200ms"),
		fault.Unavailable)
	statetest.WantOpenFault(t, opening(t, "redisHost", address), fault.Unavailable)
}

// certificates returns a self-signed certificate for this host, and its key.
func certificates(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testutil.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	testutil.Must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}
