package jsonbody

import (
	"encoding/json"
	"testing"
)

func FuzzJSONString(f *testing.F) {
	for _, seed := range []string{"", "a", "\"\\/\b\f\n\r\t", "\x00\x1f\x7f", "<>&", "é😀\u2028", "\xff", "a\xe2\x82",
		"\ufffd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := AppendString([]byte("x"), s)[1:]
		var got, want string
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %q: %v", s, out, err)
		}
		reference, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(reference, &want); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%q became %q, which reads as %q, want %q", s, out, got, want)
		}
	})
}
