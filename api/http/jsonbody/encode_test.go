package jsonbody

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func TestAppendPage_KeyThatCannotBeReadHasError(t *testing.T) {
	page := api.Page{Token: "next", Items: []state.Item{
		{Key: "a", ETag: "17", Expires: time.Unix(0, 0)},
		{Key: "b", Err: fault.New(fault.Corrupt, "mongodb.Get", "the field _etag is no text")},
	}}
	const want = `{"keys":[{"key":"a","etag":"17","ttlExpireTime":"1970-01-01T00:00:00Z"},` +
		`{"key":"b","error":"the field _etag is no text"}],"token":"next"}`
	if got := string(AppendPage(nil, &page)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

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
