package jsonbody

import (
	"reflect"
	"testing"
)

func TestPlainSave_DecodesUsualBodies(t *testing.T) {
	t.Parallel()
	for _, body := range plainBodies {
		if _, ok := plainSave([]byte(body), 1); !ok {
			t.Errorf("%s is left to encoding/json", body)
		}
		samePlain(t, []byte(body))
	}
}

func TestPlainSave_LeavesOtherBodies(t *testing.T) {
	t.Parallel()
	for _, body := range otherBodies {
		if items, ok := plainSave([]byte(body), 1); ok {
			t.Errorf("%s was decoded: %+v", body, items)
		}
	}
}

// TestPlainSave_DoesNotReferToTheBody overwrites the body after plainSave, because its buffer is reused for other
// requests.
func TestPlainSave_DoesNotReferToTheBody(t *testing.T) {
	t.Parallel()
	body := []byte(plainBodies[2])
	items, ok := plainSave(body, 1)
	want, _ := plainSave(append([]byte(nil), body...), 1)
	for i := range body {
		body[i] = 'x'
	}
	if !ok || !reflect.DeepEqual(items, want) {
		t.Fatalf("%+v, want %+v", items, want)
	}
}

func FuzzPlainSave(f *testing.F) {
	for _, list := range [][]string{plainBodies, otherBodies} {
		for _, body := range list {
			f.Add([]byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) { samePlain(t, body) })
}

var plainBodies = []string{
	`[]`,
	` [ { } , { "key" : "k" } ] what follows is ignored`,
	`[{"key":"k","value":"v","etag":"7","metadata":{"ttlInSeconds":"9"},` +
		`"options":{"concurrency":"first-write","consistency":"strong"}}]`,
	`[{"key":"é","value":"with \"escapes\" \u00e9"}]`,
	`[{"key":"k","value":null},{"key":"l","value": -1.5e3 } , {"key":"m","value":[1,{"a":[true]}]}]`,
	`[{"value":{"key":"inner"},"metadata":{},"options":{}}]`,
}

var otherBodies = []string{
	``, `null`, `{}`, `[`, `[{}`, `[{},]`, `[,]`, `[{"key":"k"}{"key":"l"}]`, `[1]`, `[null]`,
	`[{"Key":"k"}]`, `[{"key":"k","key":"l"}]`, `[{"key":"\u006b"}]`, `[{"key":7}]`, `[{"etag":null}]`,
	`[{"key":"k","more":1}]`, `[{"value":}]`, `[{"value":01}]`, `[{"value":tru}]`, `[{"value":"a` + "\n" + `"}]`,
	`[{"value":"\x"}]`, `[{"value":1 2}]`, `[{"options":{"other":"x"}}]`, `[{"options":[]}]`,
	`[{"metadata":{"a":1}}]`, `[{"value":"` + "\xff" + `"}]`, `[{,"key":"k"}]`, `[{"key" "k"}]`,
}

// samePlain checks that plainSave returns the same items as Decode, if plainSave decodes the body.
func samePlain(t *testing.T, body []byte) {
	t.Helper()
	got, ok := plainSave(body, 0)
	if !ok {
		return
	}
	var want []itemBody
	if err := Decode(body, &want); err != nil {
		t.Fatalf("%q was decoded, encoding/json says: %v", body, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %+v, want %+v", body, got, want)
	}
}
