package redisimport

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// key is a key of Redis, and the key of the application in it.
type key struct{ stored, own string }

// Keys says which keys of Redis belong to the application.
type Keys struct {
	Prefix state.KeyPrefix // as the component of the old runtime had it
	Owner  state.Owner     // as the old runtime knew the application
}

// sort tells whether a stored key is state of the application, and if not, why not.
func (k Keys) sort(stored string) (own string, why Reason) {
	if own, ok := k.Prefix.Original(k.Owner, stored); ok {
		return own, ""
	}
	prefix := k.Prefix.Prefix(k.Owner)
	switch rest, mine := strings.CutPrefix(stored, prefix); {
	case mine && prefix != "" && strings.Count(rest, state.Separator) == 2, prefix == "" && strings.HasPrefix(stored, k.Owner.App+state.Separator) && strings.Count(stored, state.Separator) == 3:
		return "", ActorState
	case strings.Contains(stored, state.Separator):
		return "", OtherPrefix
	default:
		return "", NoPrefix
	}
}

// foreignPrefix is what stands before the first separator of a key.
func foreignPrefix(stored string) string {
	prefix, _, _ := strings.Cut(stored, state.Separator)
	return prefix
}

// documentData takes the value out of a document: {"data": value, "version": number}.
// Data is nil if the document has none, which is no state then.
func documentData(text []byte) ([]byte, error) {
	var d map[string]json.RawMessage
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fault.New(fault.Invalid, op, "the document is no JSON object")
	}
	if d[fieldVersion] == nil {
		return nil, nil
	}
	return d[fieldData], nil
}

// encrypted reports whether a value looks like one that the old runtime encrypted: base64,
// the separator, the name of the key. Nobody but that runtime can read it.
func encrypted(value []byte) bool {
	text, name, ok := bytes.Cut(value, []byte(state.Separator))
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \"{}[]|") {
		return false
	}
	const least = 12 + 16 // nonce and tag
	plain, err := base64.StdEncoding.DecodeString(string(text))
	return err == nil && len(plain) >= least
}
