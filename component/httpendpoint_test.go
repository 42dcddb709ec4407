package component_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/quorate/quorate/component"
)

// An endpoint whose digest stays the same keeps its connections when the files are reloaded.
func TestHTTPEndpoint_DigestChangesWithEachSetting(t *testing.T) {
	e, err := component.ParseHTTPEndpoint(document(t, "HTTPEndpoint", `
  baseUrl: https://partner.example
  headers: [{name: X-Key, envRef: KEY}]
  clientTLS: {rootCA: {envRef: ROOT}}
`))
	if err != nil {
		t.Fatal(err)
	}
	digest := func(key, root string) string {
		t.Helper()
		env := map[string]string{"KEY": key, "ROOT": root}
		s, err := e.Resolve(t.Context(), component.Sources{Env: func(name string) (string, bool) {
			v, ok := env[name]
			return v, ok
		}})
		if err != nil {
			t.Fatal(err)
		}
		return e.Digest(s)
	}
	one, other := authority(t), authority(t)
	same := digest("k", one)
	if digest("k", one) != same {
		t.Error("equal settings have different digests")
	}
	for what, changed := range map[string]string{"header": digest("l", one), "root certificate": digest("k", other)} {
		if changed == same {
			t.Errorf("a new %s does not change the digest", what)
		}
	}
}

// authority returns a new self-signed certificate in PEM form.
func authority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
