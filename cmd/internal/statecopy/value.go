package statecopy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"time"

	"github.com/quorate/quorate/component/state"
)

// Value is a value as a store has it.
type Value struct {
	Data    []byte
	Binary  bool      // Data is not JSON
	Expires time.Time // zero = never
	Err     error     // the reason why the store cannot read the value of an existing key
}

// item returns the item to write.
func (v Value) item(key string) Item {
	return Item{Key: key, Value: v.Data, Binary: v.Binary, Expires: wholeSecond(v.Expires)}
}

// wholeSecond rounds up to a whole second, because some stores cannot keep parts of a second. It returns at most the
// last time that a store accepts.
func wholeSecond(at time.Time) time.Time {
	second := at.Truncate(time.Second)
	if second.Before(at) {
		second = second.Add(time.Second)
	}
	if second.Unix() > state.LastExpiry {
		return time.Unix(state.LastExpiry, 0).UTC()
	}
	return second
}

// same reports whether two values are equal and expire at about the same time. JSON values are compared by content,
// because a store may change their white space.
func same(a, b Value) bool {
	const tolerance = 5 * time.Second
	if a.Binary != b.Binary || a.Expires.IsZero() != b.Expires.IsZero() ||
		a.Expires.Sub(b.Expires).Abs() > tolerance {
		return false
	}
	return bytes.Equal(a.Data, b.Data) || !a.Binary && sameJSON(a.Data, b.Data)
}

func sameJSON(a, b []byte) bool {
	values := make([]any, 2)
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// encrypted reports whether a value was probably encrypted by Dapr. It then consists of base64 text, a separator, and
// the name of an encryption key. Only Dapr can decrypt it.
func (v Value) encrypted() bool {
	text, name, ok := bytes.Cut(v.Data, []byte(state.Separator))
	if !v.Binary || !ok || len(name) == 0 || bytes.ContainsAny(name, " \"{}[]|") {
		return false
	}
	const least = 12 + 16 // nonce and tag
	plain, err := base64.StdEncoding.DecodeString(string(text))
	return err == nil && len(plain) >= least
}
