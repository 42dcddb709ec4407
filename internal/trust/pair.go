package trust

import (
	"crypto/tls"
	"crypto/x509"

	"github.com/quorate/quorate/internal/fault"
)

// Pair is an external certificate, its key, and the authorities that this node accepts.
type Pair struct {
	cert  tls.Certificate
	roots *x509.CertPool
}

// ReadPair parses the contents of three PEM files: a certificate with its intermediates, its private key, and the
// certificate authorities. It returns fault.Invalid if any of them is invalid. Errors never quote the files.
func ReadPair(cert, key, ca []byte) (*Pair, error) {
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ReadPair",
			Msg: "the cluster certificate and its key cannot be used", Err: err, Hint: "give PEM files that " +
				"belong together"}
	}
	p := &Pair{cert: c, roots: x509.NewCertPool()}
	if !p.roots.AppendCertsFromPEM(ca) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ReadPair",
			Msg: "there is no certificate of an authority in the file of --cluster-ca-file", Hint: "give a PEM file"}
	}
	return p, nil
}
