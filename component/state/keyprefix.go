package state

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// Separator stands between the prefix of a stored key and the key, and between the
// parts of an actor key. No key, application id, actor type or actor id contains it.
const Separator = "||"

// MaxKeyPrefix is the longest literal key prefix, in bytes.
const MaxKeyPrefix = 256

// Owner is what a key prefix can be made of.
type Owner struct {
	App       string // application id
	Namespace string // of the node; empty = none
	Store     string // component name of the store
}

// KeyPrefix says which keys share a name space: it turns an application's key into the
// stored key and back. The zero value is the default, KeyPrefixAppID. It is comparable
// and immutable.
type KeyPrefix struct {
	strategy strategy
	literal  string
}

type strategy uint8

const (
	byAppID strategy = iota
	byNamespace
	byName
	unprefixed
	byLiteral
)

// The strategies by the names a component file gives them; any other text is a literal prefix.
const (
	KeyPrefixAppID     = "appid"     // <app>||<key>: each application has its own keys
	KeyPrefixNamespace = "namespace" // <namespace>.<app>||<key>; as appid without a namespace
	KeyPrefixName      = "name"      // <store>||<key>: all applications share the store
	KeyPrefixNone      = "none"      // <key>: as name, without a prefix
)

// ParseKeyPrefix reads the component metadata keyPrefix: one of the strategies, or a
// literal prefix. Case does not matter; a literal is kept in lower case, as the tools
// that share a database with this store expect. Empty text means the default. The error
// is fault.Invalid.
func ParseKeyPrefix(text string) (KeyPrefix, error) {
	problem := literalProblem(text)
	switch text = strings.ToLower(text); text {
	case "", KeyPrefixAppID:
		return KeyPrefix{}, nil
	case KeyPrefixNamespace:
		return KeyPrefix{strategy: byNamespace}, nil
	case KeyPrefixName:
		return KeyPrefix{strategy: byName}, nil
	case KeyPrefixNone:
		return KeyPrefix{strategy: unprefixed}, nil
	}
	if problem != "" {
		e := fault.New(fault.Invalid, "state.ParseKeyPrefix", "keyPrefix "+quote(text)+" "+problem)
		e.Hint = "use appid, namespace, name, none, or a literal prefix"
		return KeyPrefix{}, e
	}
	return KeyPrefix{strategy: byLiteral, literal: text}, nil
}

// literalProblem refuses every '|', not only the separator: "a|" would make "a|||k",
// which reads back as prefix "a" and key "|k".
func literalProblem(text string) string {
	switch {
	case strings.ContainsRune(text, '|'):
		return "contains '|', which separates the prefix from the key"
	case len(text) > MaxKeyPrefix:
		return "is longer than 256 bytes"
	case !utf8.ValidString(text):
		return "is not valid UTF-8"
	case strings.TrimSpace(text) != text:
		return "begins or ends with white space"
	case strings.ContainsFunc(text, unicode.IsControl):
		return "contains a control character"
	}
	return ""
}

// String returns the text that ParseKeyPrefix reads as p.
func (p KeyPrefix) String() string {
	switch p.strategy {
	case byNamespace:
		return KeyPrefixNamespace
	case byName:
		return KeyPrefixName
	case unprefixed:
		return KeyPrefixNone
	case byLiteral:
		return p.literal
	default:
		return KeyPrefixAppID
	}
}

// Prefix returns what the stored keys of o begin with, the separator included; it is
// empty for KeyPrefixNone.
func (p KeyPrefix) Prefix(o Owner) string { return p.Stored(o, "") }

// Stored returns the stored key of o's key.
func (p KeyPrefix) Stored(o Owner, key string) string {
	switch p.strategy {
	case byNamespace:
		if o.Namespace != "" {
			return o.Namespace + "." + o.App + Separator + key
		}
	case byName:
		return o.Store + Separator + key
	case unprefixed:
		return key
	case byLiteral:
		return p.literal + Separator + key
	}
	return o.App + Separator + key
}

// Original is the inverse of Stored: false says that stored is not a key of o. That
// goes for actor state too, which lies below the same prefix but has a separator in
// what would be its key.
func (p KeyPrefix) Original(o Owner, stored string) (string, bool) {
	key, ok := strings.CutPrefix(stored, p.Prefix(o))
	if !ok || key == "" || strings.Contains(key, Separator) {
		return "", false
	}
	return key, true
}

// ActorKey returns the stored key of one piece of actor state. The key prefix strategy
// of the store plays no part in it. Validate the parts with ValidateActor and ValidateKey.
func ActorKey(app, actorType, actorID, key string) string {
	return app + Separator + actorType + Separator + actorID + Separator + key
}
