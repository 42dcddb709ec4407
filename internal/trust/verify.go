package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// verify checks that a chain was issued by an accepted authority and is valid now.
func (c *credentials) verify(chain []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return distrust(Unfit, "there is no certificate", "both nodes need a cluster token, or certificates")
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: c.roots, Intermediates: between, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return c.doubt(chain[0], now, err)
		}
	}
	return nil
}

// doubt explains err, the error from the verification of a node's certificate. Names from the certificate are quoted,
// because an untrusted certificate may contain any characters.
func (c *credentials) doubt(leaf *x509.Certificate, now time.Time, err error) error {
	who := fmt.Sprintf("the certificate of node %.128q", leaf.Subject.CommonName)
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return c.foreign(who, leaf)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return untimed(who, leaf, now)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return distrust(Unfit, who+" does not allow both ends of a connection",
			"nodes call each other: issue it for server and client authentication")
	}
	return &Distrust{Doubt: Unfit,
		Err: &fault.Error{Code: fault.Denied, Op: "trust.Verify", Msg: who + " cannot be used", Err: err}}
}

func (c *credentials) foreign(who string, leaf *x509.Certificate) error {
	theirs, byToken := strings.CutPrefix(leaf.Issuer.CommonName, authorityPrefix)
	switch {
	case c.own:
		return distrust(Foreign, fmt.Sprintf("%s was issued by %.128q, which is none of the authorities in "+
			"--cluster-ca-file", who, leaf.Issuer.CommonName), "give all nodes certificates of one authority")
	case !byToken:
		return distrust(Foreign, fmt.Sprintf("%s was issued by %.128q, but this node has a cluster token", who,
			leaf.Issuer.CommonName),
			"give all nodes the same cluster token, or all of them certificates of one authority")
	}
	return distrust(Foreign, fmt.Sprintf("%s was issued under cluster token %.8q, and this node accepts %s", who,
		theirs, strings.Join(c.fingerprints, " and ")),
		"give both nodes the same --cluster-token-file; while tokens are exchanged, both files need both tokens")
}

func untimed(who string, leaf *x509.Certificate, now time.Time) error {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if now.Before(leaf.NotBefore) {
		return distrust(Untimed, fmt.Sprintf("%s is valid from %s on, and this node's clock says %s", who,
			at(leaf.NotBefore), at(now)), "compare the clocks of both nodes")
	}
	return distrust(Untimed, fmt.Sprintf("%s has expired at %s, and this node's clock says %s", who,
		at(leaf.NotAfter), at(now)),
		"compare the clocks of both nodes; one that was made elsewhere has to be replaced")
}

// Verify checks that the other side of a connection is server. The certificate in state must be valid now, belong to
// server, and be issued by an accepted authority. Verify returns the identity in the certificate. Its errors wrap a
// Distrust.
func (k *Keeper) Verify(state tls.ConnectionState, server string) (Identity, error) {
	c := k.current.Load()
	if err := c.verify(state.PeerCertificates, k.now()); err != nil {
		return Identity{}, err
	}
	leaf := state.PeerCertificates[0]
	return identityOf(leaf).speaksFor(server, leaf.DNSNames)
}

// verifyChain checks that the certificate in state is valid now and was issued by an accepted authority. It does not
// check which server the certificate belongs to.
func (k *Keeper) verifyChain(state tls.ConnectionState) error {
	return k.current.Load().verify(state.PeerCertificates, k.now())
}
