package rest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// Authorities returns a pool with the certificate authorities in text, which is in PEM form. It returns fault.Invalid
// if the text is invalid. source names the origin of the text in the error message.
func Authorities(source string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &fault.Error{Code: fault.Invalid, Op: "rest.Authorities", Msg: source +
				" holds a certificate that cannot be read", Err: err}
		}
		pool.AddCert(cert)
		found = true
	}
	if !found {
		return nil, &fault.Error{Code: fault.Invalid, Op: "rest.Authorities", Msg: source + " holds no certificate",
			Hint: "give certificates in PEM form"}
	}
	return pool, nil
}

// AuthorityFile returns a pool with the certificate authorities in a PEM file. It returns fault.Invalid if the file
// cannot be read or is invalid.
func AuthorityFile(path string) (*x509.CertPool, error) {
	text, err := userfile.Read(path)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "rest.AuthorityFile",
			Msg: "reading certificate authorities", Err: err}
	}
	return Authorities(path, text)
}

// AuthorityFolder returns a pool of the certificate authorities in all regular files of a folder, except hidden
// files. It returns fault.Invalid if a file cannot be read or is invalid.
func AuthorityFolder(path string) (*x509.CertPool, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "rest.AuthorityFolder",
			Msg: "reading certificate authorities", Err: err}
	}
	var all []byte
	for _, entry := range entries {
		full := filepath.Join(path, entry.Name())
		// Stat follows links, which mounted configuration uses.
		info, err := os.Stat(full)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		text, err := userfile.Read(full)
		if err != nil {
			return nil, &fault.Error{Code: fault.Invalid, Op: "rest.AuthorityFolder",
				Msg: "reading certificate authorities", Err: err}
		}
		all = slices.Concat(all, text, []byte("\n"))
	}
	return Authorities(path, all)
}

// TLS returns the TLS settings of a client that trusts the authorities in pool. If pool is nil, the client trusts the
// authorities of the operating system.
func TLS(pool *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}
