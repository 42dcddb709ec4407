package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
)

// AuthorityKey returns the public key of the authority of a token, or the text of an error.
func AuthorityKey(t Token) string {
	a, err := newAuthority(t)
	if err != nil {
		return err.Error()
	}
	return hex.EncodeToString(a.key.Public().(ed25519.PublicKey))
}

// AuthorityHash returns the hash of the certificate of the authority of a token, or the text of an error.
func AuthorityHash(t Token) string {
	a, err := newAuthority(t)
	if err != nil {
		return err.Error()
	}
	h := sha256.Sum256(a.cert.Raw)
	return hex.EncodeToString(h[:])
}
