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
	return Item{Key: key, Value: v.Data, Binary: v.Binary, Expires: state.ExpirySecond(v.Expires)}
}

// far is a time to live of 50 years. If two values live longer than this, their expiries count as equal. Some stores
// shorten a time to live to math.MaxInt32 seconds, which is 68 years.
const far = 50 * 365 * 24 * time.Hour

// Tolerance is the maximum difference between the expiry times of two values that count as equal.
const Tolerance = 5 * time.Second

// same reports whether two values are equal and expire at about the same time. JSON values are compared by content,
// because a store may change their white space.
func same(a, b Value) bool {
	if a.Binary != b.Binary || a.Expires.IsZero() != b.Expires.IsZero() || !sameExpiry(a.Expires, b.Expires) {
		return false
	}
	return bytes.Equal(a.Data, b.Data) || !a.Binary && sameJSON(a.Data, b.Data)
}

func sameExpiry(a, b time.Time) bool {
	isFar := func(at time.Time) bool { return time.Until(at) > far }
	return a.Sub(b).Abs() <= Tolerance || isFar(a) && isFar(b)
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

// encrypted reports whether Dapr has probably encrypted the value, so that only Dapr can decrypt it. An encrypted value
// consists of base64 text, a separator, and the name of an encryption key.
func (v Value) encrypted() bool {
	text, name, ok := bytes.Cut(v.Data, []byte(state.Separator))
	if !v.Binary || !ok || len(name) == 0 || bytes.ContainsAny(name, " \"{}[]|") {
		return false
	}
	const least = 12 + 16 // nonce and tag
	plain, err := base64.StdEncoding.DecodeString(string(text))
	return err == nil && len(plain) >= least
}
