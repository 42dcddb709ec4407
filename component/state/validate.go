package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// Bounds of names and keys, in bytes.
const (
	MaxKeySize       = 4 << 10 // bytes of an application's key, without its prefix
	MaxAppIDSize     = 128
	MaxActorNameSize = 1 << 10 // bytes of an actor type, and bytes of an actor id
)

// ValidateKey checks a key of an application. The key must be valid UTF-8 of 1 to MaxKeySize bytes without "||".
// ValidateKey returns fault.TooLarge for a key that is too long, and fault.Invalid for any other problem. The error
// contains the key, shortened if it is long.
func ValidateKey(key string) error {
	const op = "state.ValidateKey"
	switch {
	case key == "":
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: "the key is empty"}
	case len(key) > MaxKeySize:
		return &fault.Error{Code: fault.TooLarge, Op: op, Key: shorten(key), Msg: fmt.Sprintf(
			"key %s has %d bytes; the limit is %d", quote(key), len(key), MaxKeySize)}
	case strings.Contains(key, Separator):
		return &fault.Error{Code: fault.Invalid, Op: op, Key: key, Msg: fmt.Sprintf(
			"key %s contains %q, which separates the parts of a stored key", quote(key), Separator)}
	case !utf8.ValidString(key):
		return &fault.Error{Code: fault.Invalid, Op: op, Key: key, Msg: "key " + quote(key) + " is not valid UTF-8"}
	}
	return nil
}

// ValidateActorKey checks a key of actor state in the form type||id||key, which tools that copy a store use. Each of
// the three parts must pass ValidateKey. They need not pass ValidateActor, because the state may come from Dapr, which
// allows more characters.
func ValidateActorKey(key string) error {
	const actorParts = 3
	parts := strings.Split(key, Separator)
	if len(parts) != actorParts || slices.Contains(parts, "") {
		return &fault.Error{Code: fault.Invalid, Op: "state.ValidateActorKey", Key: shorten(key),
			Msg: "a key of actor state has the form type||id||key"}
	}
	for _, part := range parts {
		if err := ValidateKey(part); err != nil {
			return err
		}
	}
	return nil
}

// ValidateAppID returns fault.Invalid unless id is a valid application id: 1 to MaxAppIDSize ASCII letters, digits, '-'
// and '_'. A dot is not allowed, because stored keys may contain the namespace and the id in the form "namespace.id".
func ValidateAppID(id string) error {
	switch {
	case id == "":
		return nameError("state.ValidateAppID", id, "the app id is empty")
	case len(id) > MaxAppIDSize:
		return nameError("state.ValidateAppID", id,
			fmt.Sprintf("app id %s has %d bytes; the limit is %d", quote(id), len(id), MaxAppIDSize))
	}
	for _, c := range []byte(id) {
		if !isAppIDByte(c) {
			return nameError("state.ValidateAppID", id,
				"app id "+quote(id)+" may only contain letters, digits, '-' and '_'")
		}
	}
	return nil
}

func isAppIDByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// ValidateActor returns fault.Invalid unless an actor type and an actor id are valid. Each must be valid UTF-8 with
// 1 to MaxActorNameSize bytes, without / \ # ? and control characters. It must not be a dot segment (see
// IsDotSegment). A type must not contain |.
func ValidateActor(actorType, actorID string) error {
	if err := validateActorName("actor type", actorType); err != nil {
		return err
	}
	if strings.Contains(actorType, "|") {
		return nameError("state.ValidateActor", actorType, "actor type "+quote(actorType)+" contains |")
	}
	return validateActorName("actor id", actorID)
}

// IsDotSegment reports whether a server could interpret name as the path segment "." or "..". This is also true for a
// name such as "..;x". Some servers remove everything from the ';' on, even if the ';' is escaped.
func IsDotSegment(name string) bool {
	bare, _, _ := strings.Cut(name, ";")
	return bare == "." || bare == ".."
}

func validateActorName(what, name string) error {
	const op = "state.ValidateActor"
	switch {
	case name == "":
		return nameError(op, name, "the "+what+" is empty")
	case len(name) > MaxActorNameSize:
		return nameError(op, name, fmt.Sprintf("%s %s has %d bytes; the limit is %d", what, quote(name), len(name),
			MaxActorNameSize))
	case !utf8.ValidString(name):
		return nameError(op, name, what+" "+quote(name)+" is not valid UTF-8")
	case IsDotSegment(name):
		return nameError(op, name, what+" "+quote(name)+" is a dot segment, and applications receive it in a path")
	case strings.ContainsAny(name, `/\#?`) || strings.ContainsFunc(name, unicode.IsControl):
		return nameError(op, name, what+" "+quote(name)+` contains one of / \ # ? or a control character`)
	}
	return nil
}

func nameError(op, name, msg string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Key: shorten(name), Msg: msg}
}

// shorten bounds the length of a caller's text in a message.
func shorten(s string) string { return fault.Shorten(s, maxShown) }

// maxShown bounds a caller's text in a message, in bytes.
const maxShown = 131

func quote(s string) string { return strconv.Quote(shorten(s)) }
