package state

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// Separator separates the prefix of a stored key from the rest, and the parts of an actor key from each other. Keys,
// application ids and actor types must not contain Separator. StoredActorID escapes actor ids that contain it.
const Separator = "||"

// PrefixOf returns the part of a stored key before the first Separator, or "" if the key contains no Separator. For
// example, PrefixOf("app||k") is "app". With the default keyPrefix, the result is the id of the application that wrote
// the key.
//
// In a replicated store, keys with the same prefix are in the same partition and in the same history of changes.
// Therefore PrefixOf is part of the data format and must never change.
func PrefixOf(key string) string {
	prefix, _, found := strings.Cut(key, Separator)
	if !found {
		return ""
	}
	return prefix
}

// MaxKeyPrefix is the maximum length of a literal key prefix, in bytes.
const MaxKeyPrefix = 256

// Owner has the parts of which a key prefix can be made.
type Owner struct {
	App       string // application id
	Namespace string // namespace of the node; empty = none
	Store     string // component name of the store
}

// KeyPrefix determines the prefix of the stored keys of an application. Applications with the same prefix share their
// keys. The zero value is the default, KeyPrefixAppID. Values are comparable and immutable.
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

// The strategies as named in component files. Any other text is a literal prefix.
const (
	KeyPrefixAppID     = "appid"     // <app>||<key>: each application has its own keys
	KeyPrefixNamespace = "namespace" // <namespace>.<app>||<key>; like appid if the node has no namespace
	KeyPrefixName      = "name"      // <store>||<key>: all applications share the store
	KeyPrefixNone      = "none"      // <key>: all applications share the store, and keys have no prefix
)

// ParseKeyPrefix parses the component metadata keyPrefix: the name of a strategy, or a literal prefix. The empty string
// means the default. Case is ignored, and a literal prefix is converted to lower case, as in Dapr. ParseKeyPrefix
// returns fault.Invalid for a literal prefix that is not allowed.
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

// literalProblem returns what is wrong with a literal prefix, or "" if it is valid. The character '|' is not allowed,
// because stored keys would be ambiguous: "a|||k" could belong to the prefix "a|" or to "a".
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

// String returns the text that ParseKeyPrefix parses as p.
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

// Prefix returns the prefix of the stored keys of the owner o, including the separator. It is empty for KeyPrefixNone.
func (p KeyPrefix) Prefix(o Owner) string { return p.Stored(o, "") }

// Stored returns the stored key for a key of the owner o.
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

// Original is the inverse of Stored: it returns the owner's key for a stored key. The second result is false for the
// stored key of another owner, and for actor state. The key of actor state has a further Separator after the prefix.
func (p KeyPrefix) Original(o Owner, stored string) (string, bool) {
	key, ok := strings.CutPrefix(stored, p.Prefix(o))
	if !ok || key == "" || strings.Contains(key, Separator) {
		return "", false
	}
	return key, true
}

// ActorKey returns the stored key of one value of actor state, in the form app||type||id||key. This form is the same
// for all key prefix strategies. The caller must have validated the arguments with ValidateActor and ValidateKey.
func ActorKey(app, actorType, actorID, key string) string {
	return app + Separator + actorType + Separator + StoredActorID(actorID) + Separator + key
}

// StoredActorID returns the form of an actor id in stored keys. This is the id itself, as in Dapr, unless the id
// contains Separator or begins or ends with '|'. In such an id, each '|' becomes a backslash. The result is
// unambiguous, because no id contains a backslash.
func StoredActorID(id string) string {
	if strings.Contains(id, Separator) || strings.HasPrefix(id, "|") || strings.HasSuffix(id, "|") {
		return strings.ReplaceAll(id, "|", `\`)
	}
	return id
}

// ActorIDOf is the inverse of StoredActorID.
func ActorIDOf(stored string) string { return strings.ReplaceAll(stored, `\`, "|") }
