package trust

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// The format of a token: a prefix and 40 characters of base32. The prefix identifies a cluster token and the version of
// the format. The characters encode 160 random bits and a checksum of 40 bits.
const (
	tokenFamily = "quorate_cluster"
	tokenPrefix = tokenFamily + "1_"
	secretLen   = 20
	sumLen      = 5
	tokenBody   = (secretLen + sumLen) * 8 / 5
	maxTokens   = 2
)

// Token is the secret of a cluster. Every node with the token can join the cluster. Only Reveal returns the token as
// text. Logs and errors do not contain it.
type Token struct{ secret [secretLen]byte }

// NewToken returns a new random token.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t.secret[:]) // rand.Read never fails: it aborts the program instead
	return t
}

func tokenEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

func (t Token) sum() []byte {
	h := sha256.Sum256(append([]byte(tokenPrefix), t.secret[:]...))
	return h[:sumLen]
}

// Reveal returns the token as text, for the file that holds it.
func (t Token) Reveal() string {
	return tokenPrefix + tokenEncoding().EncodeToString(append(t.secret[:], t.sum()...))
}

// Fingerprint returns 8 hexadecimal digits that identify the token without revealing it.
func (t Token) Fingerprint() string { return hex.EncodeToString(t.derive(labelFingerprint, 4)) }

// String hides the token.
func (t Token) String() string { return "cluster token " + t.Fingerprint() }

// GoString hides the token from %#v.
func (t Token) GoString() string { return t.String() }

// LogValue hides the token from logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText hides the token from JSON and YAML.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// ParseToken parses the text of a token. If the text is not a token, it returns fault.Invalid with the reason. Errors
// never contain the text.
func ParseToken(text string) (Token, error) {
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return Token{}, noToken(text)
	}
	if len(body) != tokenBody {
		return Token{}, badToken("it has %d characters after %s, a token has %d: something is missing, or was added",
			len(body), tokenPrefix, tokenBody)
	}
	raw, err := tokenEncoding().DecodeString(body)
	if err != nil || len(raw) != secretLen+sumLen {
		return Token{}, badToken("it has a character that no token has: they are made of a to z and 2 to 7")
	}
	t := Token{secret: [secretLen]byte(raw)}
	if subtle.ConstantTimeCompare(raw[secretLen:], t.sum()) != 1 {
		return Token{}, badToken("its checksum does not fit: a character of it was changed")
	}
	return t, nil
}

// noToken returns the error for a text that does not begin with tokenPrefix. The error explains whether the text is a
// token in an unknown version of the format, or not a token at all.
func noToken(text string) error {
	if rest, ok := strings.CutPrefix(text, tokenFamily); ok {
		if version, _, found := strings.Cut(rest, "_"); found && version != "" && len(version) <= 3 &&
			strings.Trim(version, "0123456789") == "" {
			return badToken("its form, number %s, is not known to this version, which knows 1", version)
		}
	}
	return badToken("it does not begin with %s: a password that you choose is too easily guessed", tokenPrefix)
}

func badToken(format string, args ...any) error {
	return &fault.Error{Code: fault.Invalid, Op: "trust.ParseToken", Msg: "this is no cluster token: " +
		fmt.Sprintf(format, args...), Hint: "make one with: quorate token create"}
}

// ParseTokens parses a file with one token per line. The file normally has one token. It has two while the token of a
// cluster is being replaced. Empty lines and lines that begin with # are ignored.
//
// ParseTokens returns fault.Invalid if the file is invalid. The error contains the number of a malformed line. It never
// quotes the file, because the file contains secrets.
func ParseTokens(file []byte) ([]Token, error) {
	var out []Token
	for i, line := range bytes.Split(file, []byte("\n")) {
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		t, err := ParseToken(text)
		if err != nil {
			return nil, fault.Wrap(err, "trust.ParseTokens", fmt.Sprintf("line %d", i+1))
		}
		out = append(out, t)
	}
	switch {
	case len(out) == 0:
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens", Msg: "there is no token in it",
			Hint: "make one with: quorate token create"}
	case len(out) > maxTokens:
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens",
			Msg:  fmt.Sprintf("there are %d tokens in it, at most %d are allowed", len(out), maxTokens),
			Hint: "the first one is used, the second one is accepted as well while tokens are exchanged"}
	case len(out) == maxTokens && out[0] == out[1]:
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens", Msg: "it holds the same token twice",
			Hint: "remove one of the lines"}
	}
	return out, nil
}

// Labels for the derivation of keys from a token. Each key has its own label, so that the keys are independent. The
// labels must never change, because nodes of all versions must derive the same keys.
const (
	deriveSalt       = "quorate cluster token 1"
	labelGossip      = "gossip key"
	labelAuthority   = "certificate authority ed25519"
	labelFingerprint = "fingerprint"
)

// derive returns n bytes for the use that label names, by HKDF with SHA-256.
func (t Token) derive(label string, n int) []byte {
	key, err := hkdf.Key(sha256.New, t.secret[:], []byte(deriveSalt), label, n)
	if err != nil {
		panic(err) // only for more than 8160 bytes
	}
	return key
}

// GossipKey returns the key for gossip: 32 bytes.
func (t Token) GossipKey() []byte { return t.derive(labelGossip, 32) }
