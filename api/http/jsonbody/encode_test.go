package jsonbody

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzJSONString(f *testing.F) {
	for _, seed := range []string{"", "a", "\"\\/\b\f\n\r\t", "\x00\x1f\x7f", "<>&", "é😀\u2028", "\xff", "a\xe2\x82",
		"\ufffd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := AppendString([]byte("x"), s)[1:]
		var back string
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%q became %q: %v", s, out, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back != s || len(want) > 0 && back == "" {
			t.Errorf("%q became %q", s, back)
		}
	})
}
