package trust

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// authority is the certificate authority that is derived from a token. Every node with the token derives the same
// private key, so the key is never transmitted.
type authority struct {
	name string // fingerprint of the token
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// authorityTime returns the period in which an authority is valid. The period ends in the year 9999, because a token
// does not expire.
func authorityTime() (from, to time.Time) {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
}

const authorityPrefix = "Quorate cluster authority "

func newAuthority(t Token) (*authority, error) {
	a := &authority{name: t.Fingerprint(), key: ed25519.NewKeyFromSeed(t.derive(labelAuthority, ed25519.SeedSize))}
	from, to := authorityTime()
	public := a.key.Public().(ed25519.PublicKey)
	id := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: authorityPrefix + a.name}, SubjectKeyId: id[:20],
		NotBefore: from, NotAfter: to, KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "trust.authority",
			Msg: "the cluster's certificate authority cannot be made", Err: err}
	}
	return a, nil
}

// issue makes a certificate with a new key for a node, valid for the given time.
func (a *authority) issue(id Identity, from, to time.Time) (*tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "trust.issue", Msg: "no key can be made", Err: err}
	}
	// rand.Int fails only if rand.Reader fails, and then the program ends.
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Quorate node"}, CommonName: id.Node},
		NotBefore: from, NotAfter: to, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, URIs: id.uris(),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "trust.issue", Msg: "the certificate of node " + id.Node +
			" cannot be made", Err: err}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "trust.issue", Msg: "the certificate of node " + id.Node +
			" cannot be read back", Err: err}
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, nil
}
