package jsonbody

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTally_CountsDecoderAllocations(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Tally{
		`[]`:               {},
		`null`:             {},
		``:                 {},
		`[{},{}]`:          {List: 2},
		" [ 1 , \"a,b\" ]": {List: 2},
		`[{"key":"a","value":[1,2,{"metadata":{"a":1}}],"metadata":{"x":"","y":""}}]`: {List: 1, Metadata: 2,
			entries: 2},
		`[{"metadata":{"x":""}},{"Metadata":{"x":"","y":""}}]`: {List: 2, Metadata: 2,
			entries: 3},
		`[{"\u006detadata":{"x":"]}\\\"","y":""}}]`: {List: 1, Metadata: 2,
			entries: 2},
		`[{},{}] trailing [{}`: {List: 2},
	} {
		if got := TallyItems([]byte(body)); got != want {
			t.Errorf("%s: %+v", body, got)
		}
	}
	for body, want := range map[string]Tally{
		`{"operations":[{"operation":"upsert","request":{"metadata":{"a":""}}},{}],"metadata":{"b":""}}`: {List: 2,
			Metadata: 1, entries: 2},
		`{"OPERATION\u017f":[{},{},{}]}`: {List: 3}, // \u017f, the long s, equals s if case is ignored
		`{"x":{"operations":[{}]}}`:      {},
	} {
		if got := TallyTransaction([]byte(body)); got != want {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := TallyBulk([]byte(`{"keys":["a","b"],"\u212aeys":["c","d","e"]}`)); got.List != 3 { // a Kelvin sign
		t.Errorf("%+v", got)
	}
	if got := TallyOperations([]byte(`[{"request":{"metadata":{"a":"","b":""}}}]`)); got != (Tally{List: 1,
		Metadata: 2, entries: 2}) {
		t.Errorf("%+v", got)
	}
}

// FuzzTally compares the counts with those of the decoder. The number of items must be equal, and the other counts
// must not be smaller.
func FuzzTally(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[{"key":"a","metadata":{"a":"b"}}]`, `{"operations":[{"operation":"a","request":{"metadata":{}}}]}`,
		`{"keys":["a"]}`, `[[],{`, `{"a"`, `[}`, `[:]`, "[\"\\",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		items, transaction, bulk := TallyItems(body), TallyTransaction(body), TallyBulk(body)
		_ = TallyOperations(body)
		if !json.Valid(body) {
			return
		}
		var list []itemBody
		if Decode(body, &list) == nil {
			if len(list) != items.List {
				t.Errorf("%d items, counted %d: %s", len(list), items.List, body)
			}
			for i := range list {
				if len(list[i].Metadata) > items.Metadata {
					t.Errorf("%d entries, counted %d: %s", len(list[i].Metadata), items.Metadata, body)
				}
			}
		}
		var in transactionBody
		if Decode(body, &in) == nil && len(in.Operations) > transaction.List {
			t.Errorf("%d operations, counted %d: %s", len(in.Operations), transaction.List, body)
		}
		var keys Bulk
		if Decode(body, &keys) == nil && len(keys.Keys) > bulk.List {
			t.Errorf("%d keys, counted %d: %s", len(keys.Keys), bulk.List, body)
		}
	})
}

func BenchmarkTally(b *testing.B) {
	body := []byte(`[{"key":"customer-1234","value":"` + strings.Repeat("x", 254) + `"}]`)
	b.ReportAllocs()
	for b.Loop() {
		_ = TallyItems(body)
	}
}
