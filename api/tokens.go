package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// Tokens are the API tokens that open one or more applications' API, over every protocol.
// Only their hashes are kept. Safe for concurrent use; nil is a value: no token is asked for.
type Tokens struct {
	hashes atomic.Pointer[[][sha256.Size]byte] // never nil; empty = no token is asked for
}

// NewTokens returns the tokens, any of which is accepted. The error is fault.Invalid for
// an empty one.
func NewTokens(tokens []string) (*Tokens, error) {
	hashes, err := hashTokens(tokens)
	if err != nil {
		return nil, err
	}
	t := new(Tokens)
	t.hashes.Store(&hashes)
	return t, nil
}

func hashTokens(tokens []string) ([][sha256.Size]byte, error) {
	out := make([][sha256.Size]byte, len(tokens))
	for i, token := range tokens {
		if token == "" {
			return nil, fault.New(fault.Invalid, "api.Tokens", "an API token is empty")
		}
		out[i] = sha256.Sum256([]byte(token))
	}
	return out, nil
}

// Asked reports whether requests must carry a token. It never changes.
func (t *Tokens) Asked() bool { return t != nil && len(*t.hashes.Load()) > 0 }

// Set replaces the tokens from the next request on. Who asks for tokens goes on asking,
// and who does not never begins to: an empty list is refused, as is a list where there was
// none. The error is fault.Invalid.
func (t *Tokens) Set(tokens []string) error {
	if len(tokens) == 0 || !t.Asked() {
		return fault.New(fault.Invalid, "api.SetTokens", "API tokens can be exchanged, but neither dropped nor introduced while the node runs")
	}
	hashes, err := hashTokens(tokens)
	if err != nil {
		return err
	}
	t.hashes.Store(&hashes)
	return nil
}

// Accept reports whether a request with this token may pass. It compares with every
// token, whatever the outcome, in constant time.
func (t *Tokens) Accept(given string) bool {
	if !t.Asked() {
		return true
	}
	hash, match := sha256.Sum256([]byte(given)), 0
	for _, known := range *t.hashes.Load() {
		match |= subtle.ConstantTimeCompare(hash[:], known[:])
	}
	return match == 1
}
