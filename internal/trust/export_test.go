package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
)

// AuthorityKey is the public key of a token's authority.
func AuthorityKey(t Token) string {
	a, err := newAuthority(t)
	if err != nil {
		return err.Error()
	}
	return hex.EncodeToString(a.key.Public().(ed25519.PublicKey))
}

// AuthorityHash is the hash of its certificate.
func AuthorityHash(t Token) string {
	a, err := newAuthority(t)
	if err != nil {
		return err.Error()
	}
	h := sha256.Sum256(a.cert.Raw)
	return hex.EncodeToString(h[:])
}
