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

// A token is written as a prefix, which says what it is and names the version of the form,
// and 40 characters of base32: 160 random bits, and a checksum of 40 bits.
const (
	tokenFamily = "quorate_cluster"
	tokenPrefix = tokenFamily + "1_"
	secretLen   = 20
	sumLen      = 5
	tokenBody   = (secretLen + sumLen) * 8 / 5
	maxTokens   = 2
)

// Token is the secret of a cluster: who has it is a member. Only Reveal shows it.
type Token struct{ secret [secretLen]byte }

// NewToken makes a token from the random source of the system.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t.secret[:]) // never fails: it aborts the program instead
	return t
}

func tokenEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

func (t Token) sum() []byte {
	h := sha256.Sum256(append([]byte(tokenPrefix), t.secret[:]...))
	return h[:sumLen]
}

// Reveal is the token as it stands in a file.
func (t Token) Reveal() string {
	return tokenPrefix + tokenEncoding().EncodeToString(append(t.secret[:], t.sum()...))
}

// Fingerprint names the token without giving it away: 8 hexadecimal digits.
func (t Token) Fingerprint() string { return hex.EncodeToString(t.derive(labelFingerprint, 4)) }

// String hides the token.
func (t Token) String() string { return "cluster token " + t.Fingerprint() }

// GoString hides the token from %#v.
func (t Token) GoString() string { return t.String() }

// LogValue hides the token from logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText hides the token from JSON and YAML.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// ParseToken reads a token. Errors have code invalid, say what is wrong, and never quote it.
func ParseToken(text string) (Token, error) {
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return Token{}, noToken(text)
	}
	if len(body) != tokenBody {
		return Token{}, badToken("it has %d characters after %s, a token has %d: something is missing, or was added", len(body), tokenPrefix, tokenBody)
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

// noToken tells other versions of the form from what is no token at all.
func noToken(text string) error {
	if rest, ok := strings.CutPrefix(text, tokenFamily); ok {
		if version, _, found := strings.Cut(rest, "_"); found && version != "" && len(version) <= 3 && strings.Trim(version, "0123456789") == "" {
			return badToken("its form, number %s, is not known to this version, which knows 1", version)
		}
	}
	return badToken("it does not begin with %s: passwords of one's own are too easily guessed", tokenPrefix)
}

func badToken(format string, args ...any) error {
	return &fault.Error{Code: fault.Invalid, Op: "trust.ParseToken", Msg: "this is no cluster token: " + fmt.Sprintf(format, args...), Hint: "make one with: quorate token create"}
}

// ParseTokens reads a file of tokens, one per line: one, or two while they are exchanged.
// Empty lines and lines that begin with # do not count. Errors have code invalid, name the
// line and never quote it.
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
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens", Msg: "there is no token in it", Hint: "make one with: quorate token create"}
	case len(out) > maxTokens:
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens", Msg: fmt.Sprintf("there are %d tokens in it, at most %d are allowed", len(out), maxTokens),
			Hint: "the first one is used, the second one is accepted as well while tokens are exchanged"}
	case len(out) == maxTokens && out[0] == out[1]:
		return nil, &fault.Error{Code: fault.Invalid, Op: "trust.ParseTokens", Msg: "the same token stands in it twice", Hint: "remove one of the lines"}
	}
	return out, nil
}

// What is derived from a token. Each use has a label of its own, so that no key tells
// anything about another. They never change: nodes of all versions must agree.
const (
	deriveSalt       = "quorate cluster token 1"
	labelGossip      = "gossip key"
	labelAuthority   = "certificate authority ed25519"
	labelFingerprint = "fingerprint"
)

// derive makes n bytes for a use, by HKDF with SHA-256.
func (t Token) derive(label string, n int) []byte {
	key, err := hkdf.Key(sha256.New, t.secret[:], []byte(deriveSalt), label, n)
	if err != nil {
		panic(err) // only for more than 8160 bytes
	}
	return key
}

// GossipKey is the key for gossip: 32 bytes.
func (t Token) GossipKey() []byte { return t.derive(labelGossip, 32) }
