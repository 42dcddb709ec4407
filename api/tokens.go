package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// Tokens has the valid API tokens of one or more applications. It keeps only their hashes, in memory. A nil *Tokens
// means that no token is required. Tokens are safe for concurrent use.
type Tokens struct {
	hashes atomic.Pointer[[][sha256.Size]byte] // never nil; empty = no token is required
}

// NewTokens returns Tokens that accept the given tokens. It returns fault.Invalid if one of them is empty.
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

// Required reports whether requests must carry a token. The result never changes.
func (t *Tokens) Required() bool { return t != nil && len(*t.hashes.Load()) > 0 }

// Set replaces the valid tokens for all further requests. It returns fault.Invalid if a token is empty. It also returns
// fault.Invalid if no token is required now or if the new list is empty. A running node can neither begin nor stop
// requiring tokens.
func (t *Tokens) Set(tokens []string) error {
	if len(tokens) == 0 || !t.Required() {
		return fault.New(fault.Invalid, "api.SetTokens",
			"API tokens can be exchanged, but neither dropped nor introduced while the node runs")
	}
	hashes, err := hashTokens(tokens)
	if err != nil {
		return err
	}
	t.hashes.Store(&hashes)
	return nil
}

// Accept reports whether the given token is valid. It returns true if no token is required. It compares the given token
// with every valid token in constant time.
func (t *Tokens) Accept(given string) bool {
	if !t.Required() {
		return true
	}
	hash, match := sha256.Sum256([]byte(given)), 0
	for _, known := range *t.hashes.Load() {
		match |= subtle.ConstantTimeCompare(hash[:], known[:])
	}
	return match == 1
}
