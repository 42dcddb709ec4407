package redisimport

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// key is a key in Redis, with the key of the application that it contains.
type key struct{ stored, own string }

// Keys determines which keys of Redis belong to the application.
type Keys struct {
	Prefix state.KeyPrefix // keyPrefix of the Dapr component
	Owner  state.Owner     // the application, as Dapr identified it
}

// sort reports whether a stored key is state of the application, and if not, the reason.
func (k Keys) sort(stored string) (own string, why Reason) {
	if own, ok := k.Prefix.Original(k.Owner, stored); ok {
		return own, ""
	}
	prefix := k.Prefix.Prefix(k.Owner)
	switch rest, mine := strings.CutPrefix(stored, prefix); {
	case mine && prefix != "" && strings.Count(rest, state.Separator) == 2, prefix == "" &&
		strings.HasPrefix(stored, k.Owner.App+state.Separator) && strings.Count(stored, state.Separator) == 3:
		return "", ActorState
	case strings.Contains(stored, state.Separator):
		return "", OtherPrefix
	default:
		return "", NoPrefix
	}
}

// foreignPrefix returns the part of a key before its first separator.
func foreignPrefix(stored string) string {
	prefix, _, _ := strings.Cut(stored, state.Separator)
	return prefix
}

// documentData returns the value in a JSON document of the form {"data": value, "version": number}.
// It returns nil if the document lacks one of these fields. Such a document is not state.
func documentData(text []byte) ([]byte, error) {
	var d map[string]json.RawMessage
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fault.New(fault.Invalid, op, "the document is not a JSON object")
	}
	if d[fieldVersion] == nil {
		return nil, nil
	}
	return d[fieldData], nil
}

// encrypted reports whether a value was probably encrypted by Dapr: it is base64, a separator, and
// the name of a key. Only Dapr can decrypt such a value.
func encrypted(value []byte) bool {
	text, name, ok := bytes.Cut(value, []byte(state.Separator))
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \"{}[]|") {
		return false
	}
	const least = 12 + 16 // nonce and tag
	plain, err := base64.StdEncoding.DecodeString(string(text))
	return err == nil && len(plain) >= least
}
