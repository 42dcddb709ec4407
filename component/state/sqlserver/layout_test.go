package sqlserver_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// put stores rows in the fake server without a request.
func (t *table) put(all ...row) {
	t.Lock()
	defer t.Unlock()
	for _, r := range all {
		t.rows[r.key] = r
	}
}

func TestStore_ReadsDataOfDapr(t *testing.T) {
	at := time.Now().Add(time.Hour)
	for _, c := range []struct {
		version sqlserver.Version
		row     row
		value   string
		typ     string
	}{
		{sqlserver.V1, row{text: `{"n":1}`}, `{"n":1}`, ""},
		{sqlserver.V1, row{text: `text of gRPC`}, `text of gRPC`, state.OctetStream},
		{sqlserver.V2, row{text: `{"n":1}`}, `{"n":1}`, ""},
		{sqlserver.V2, row{bytes: []byte(`{"n":1}`), binary: true}, `{"n":1}`, ""}, // saved by Dapr over gRPC
		{sqlserver.V2, row{bytes: []byte("\x00\xff"), binary: true}, "\x00\xff", state.OctetStream},
	} {
		s := start(t)
		store := opened(t, s, c.version)
		c.row.key, c.row.version, c.row.expires = "shop||k", 0x7d3, at
		s.put(c.row)
		item := statetest.WantValue(t, store, "shop||k", c.value)
		if item.ETag != "00000000000007d3" || item.ContentType != c.typ || item.Expires.Sub(at).Abs() > time.Minute {
			t.Errorf("%+v is read as %+v", c.row, item)
		}
		_, err := store.Set(t.Context(), state.SetRequest{Items: []state.Write{
			{Key: "shop||k", Value: []byte("2"), ETag: "00000000000007D3"}}})
		testutil.Must(t, err) // like Dapr, the store ignores the case of ETags
	}
}

// The year 9999 is too far for a time.Duration, and has too many minutes for DATEADD. The column has no later year.
func TestStore_ExpiryInTheYear9999(t *testing.T) {
	last := time.Unix(state.LastExpiry, 0)
	before, soon := last.AddDate(0, 0, -1), time.Now().Add(90*time.Second)
	for name, c := range map[string]struct {
		leap    time.Duration // of the clock of the server
		at, row time.Time
	}{
		"soon":         {0, soon, soon},
		"day":          {0, before, before},
		"last second":  {0, last, last},
		"clock behind": {-time.Hour, before, before.Add(-time.Hour)},
		"clock ahead":  {time.Hour, last, last},
	} {
		s := start(t)
		s.leap(c.leap)
		store := opened(t, s, sqlserver.V1)
		testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "a||k", Value: []byte("1"),
			TTL: state.TTL{Set: true, At: &c.at}}))
		s.Lock()
		got := s.rows["a||k"].expires
		s.Unlock()
		if got.Sub(c.row).Abs() > 5*time.Second {
			t.Errorf("%s: the row expires at %v, want %v", name, got, c.row)
		}
		want := c.row.Add(-c.leap)
		if item := statetest.WantValue(t, store, "a||k", "1"); item.Expires.Sub(want).Abs() > 5*time.Second {
			t.Errorf("%s: the value expires at %v, want %v", name, item.Expires, want)
		}
	}
}

// A listing reads no values, which may be large. So a value that cannot be decoded does not fail the listing.
func TestStore_ListsWithoutValues(t *testing.T) {
	for _, version := range []sqlserver.Version{sqlserver.V1, sqlserver.V2} {
		s := start(t)
		store := opened(t, s, version)
		s.put(row{key: "a||bad", text: "\uFDD0 not base64", version: 1}, row{key: "a||good", text: "1", version: 2})
		page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||"})
		if err != nil || len(page.Items) != 2 {
			t.Fatalf("List = %+v, %v", page, err)
		}
		for _, item := range page.Items {
			if item.Value != nil || item.ContentType != "" || item.ETag == "" || item.Err != nil {
				t.Errorf("the listing has %+v", item)
			}
		}
		items, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||bad", "a||good"}})
		testutil.Must(t, err)
		if items[0].Err == nil || items[0].Found() || items[1].Err != nil || !items[1].Found() {
			t.Errorf("BulkGet = %+v", items)
		}
	}
}

func TestStore_WritesDataForDapr(t *testing.T) {
	for _, c := range []struct {
		version   sqlserver.Version
		value     string
		typ       string
		text      any
		bytes     any
		hasBinary bool
	}{
		{sqlserver.V1, `{"n": 1}`, "", `{"n": 1}`, nil, false},
		{sqlserver.V1, `plain`, state.OctetStream, `plain`, nil, false},
		{sqlserver.V1, "\x00\xff", state.OctetStream, "\uFDD0AP8=", nil, false},
		{sqlserver.V1, "17", state.OctetStream, "\uFDD0MTc=", nil, false},
		{sqlserver.V1, "\"\xff\"", "", "\uFDD1Iv8i", nil, false},
		{sqlserver.V1, "\uFDD0x", state.OctetStream, "\uFDD077eQeA==", nil, false},
		{sqlserver.V2, `{"n": 1}`, "", `{"n": 1}`, nil, false},
		{sqlserver.V2, "\x00\xff", state.OctetStream, nil, []byte("\x00\xff"), true},
		{sqlserver.V2, "17", state.OctetStream, "{}", []byte("17"), true},
		{sqlserver.V2, "\"\xff\"", "", nil, []byte("\"\xff\""), true},
		{sqlserver.V2, "", state.OctetStream, nil, []byte{}, true},
	} {
		s := start(t)
		store := opened(t, s, c.version)
		testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "k", Value: []byte(c.value),
			ContentType: c.typ}))
		s.Lock()
		got := s.rows["k"]
		s.Unlock()
		if diff := cmp.Diff([]any{c.text, c.bytes, c.hasBinary}, []any{got.text, got.bytes, got.binary}); diff != "" {
			t.Errorf("v%d, %q (-want +got)\n%s", c.version, c.value, diff)
		}
		if item := statetest.WantValue(t, store, "k", c.value); item.ContentType != c.typ {
			t.Errorf("v%d, %q has type %q", c.version, c.value, item.ContentType)
		}
	}
}

// TestStore_TableThatIgnoresCase uses a table of Dapr with the usual collation, which ignores case.
func TestStore_TableThatIgnoresCase(t *testing.T) {
	s := start(t)
	s.columns = columnsOf("nvarchar", 20, "SQL_Latin1_General_CP1_CI_AS", false)
	store := opened(t, s, sqlserver.V1)
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||K", "1"), statetest.Put("a||b", "1")))
	for _, key := range []string{"a||k", "a||K "} {
		if item, err := statetest.Get(ctx, store, key); err != nil || item.Found() {
			t.Errorf("%q is %+v, %v", key, item, err)
		}
		_, err := store.Delete(ctx, state.DeleteRequest{Key: key})
		testutil.Must(t, err)
	}
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")), fault.Invalid, "takes another key")
	items, err := store.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"a||k", "a||K"}})
	if err != nil || items[0].Found() || !items[1].Found() {
		t.Errorf("BulkGet = %+v, %v", items, err)
	}
	page, err := store.List(ctx, state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 2 || page.Items[0].Key != "a||K" {
		t.Errorf("List = %+v, %v", page, err)
	}
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put(strings.Repeat("k", 21), "1")), fault.TooLarge,
		"20 characters")
}

func TestStore_KeyTypes(t *testing.T) {
	for kind, keys := range map[string][]string{
		"uuid":    {"6b29fc40-ca47-1067-b31d-00dd010662da", "6B29FC40-CA47-1067-B31D-00DD010662DA", "not a UUID"},
		"integer": {"-17", "017", "seventeen"},
	} {
		s := start(t)
		store := opened(t, s, sqlserver.V1, "keyType", kind)
		testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put(keys[0], "1")))
		statetest.WantValue(t, store, keys[0], "1")
		for _, key := range keys[1:] {
			statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put(key, "1")), fault.Invalid,
				"as keyType demands", "keyPrefix")
			if item, err := statetest.Get(t.Context(), store, key); err != nil || item.Found() {
				t.Errorf("%q: %+v, %v", key, item, err)
			}
		}
		items, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: keys})
		if err != nil || !items[0].Found() || items[1].Found() || items[2].Found() {
			t.Errorf("BulkGet = %+v, %v", items, err)
		}
		page, err := store.List(t.Context(), state.ListRequest{Prefix: keys[0][:2]})
		if err != nil || len(page.Items) != 1 || page.Items[0].Key != keys[0] {
			t.Errorf("List = %+v, %v", page, err)
		}
	}
}

func TestOpen_TableOfOtherVersion(t *testing.T) {
	for want, c := range map[string]struct {
		version sqlserver.Version
		columns [][]any
		pairs   []string
	}{
		"is one of version v2":      {sqlserver.V1, columnsOf("nvarchar", 200, "X_BIN2", true), nil},
		"has no column BinaryData":  {sqlserver.V2, columnsOf("nvarchar", 200, "X_BIN2", false), nil},
		"have the type int":         {sqlserver.V1, columnsOf("int", 0, "", false), nil},
		"no usable collation":       {sqlserver.V1, columnsOf("nvarchar", 200, "X; DROP", false), nil},
		"ADD [customer] AS CONVERT": {sqlserver.V1, columnsOf("nvarchar", 200, "X_BIN2", false), indexedCustomer()},
	} {
		s := start(t)
		s.columns, s.metadata = c.columns, 400
		err := once(t, sqlserver.Options{Version: c.version}, append(c.pairs, "connectionString", uri(s))...)
		statetest.WantFault(t, err, fault.Invalid, want)
	}
}

func indexedCustomer() []string {
	return []string{"indexedProperties", `[{"column": "customer", "property": "customer.id", "type": "int"}]`}
}

// TestStore_BulkGetIsOneRequest checks the number of requests of a bulk read, with and without Dapr's setting
// bulkGetChunkSize.
func TestStore_BulkGetIsOneRequest(t *testing.T) {
	keys := make([]string, 3000)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	for size, want := range map[string]int{"0": 1, "1000": 3} {
		s := start(t)
		store := opened(t, s, sqlserver.V2, "bulkGetChunkSize", size)
		_, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: keys})
		if n := s.sent("OPENJSON"); err != nil || n != want {
			t.Errorf("%d requests, %v", n, err)
		}
	}
	s := start(t)
	store := opened(t, s, sqlserver.V2)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("k1", "123")))
	_, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"k1", "k1"}, MaxBytes: 5})
	statetest.WantFault(t, err, fault.TooLarge, "5 bytes")
}

// transcript returns the requests with their parameters.
func (s *server) transcript() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, r := range s.requests {
		out.WriteString(strings.TrimSpace(r.text) + "\n")
		for _, name := range slices.Sorted(maps.Keys(r.params)) {
			fmt.Fprintf(&out, "  %s = %#v\n", name, r.params[name])
		}
		if r.types != "" {
			fmt.Fprintf(&out, "  (%s)\n", r.types)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// TestStore_Transcript compares all SQL that the store sends with a file.
func TestStore_Transcript(t *testing.T) {
	for _, version := range []sqlserver.Version{sqlserver.V1, sqlserver.V2} {
		s := start(t)
		ctx := t.Context()
		server := "sqlserver://shop:secret@" + s.Address() + "?encrypt=disable"
		store, err := open(ctx, t, sqlserver.Options{Version: version}, append(indexedCustomer(), "connectionString",
			server)...)
		testutil.Must(t, err)
		set := func(items ...state.Write) string {
			w, err := store.Set(ctx, state.SetRequest{Items: items})
			testutil.Must(t, err)
			return w.ETags[0]
		}
		etag := set(state.Write{Key: "a||k", Value: []byte(`{"n":1}`), TTL: state.TTL{Set: true, Seconds: 90}})
		etag = set(state.Write{Key: "a||k", Value: []byte("\xff"), ContentType: state.OctetStream, ETag: etag})
		set(state.Write{Key: "a||l", Value: []byte("1"), Concurrency: state.FirstWrite})
		set(statetest.Put("a||m", "1"), statetest.Put("a||n", "1"))
		_, err = statetest.Get(ctx, store, "a||k")
		testutil.Must(t, err)
		_, err = store.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"a||k", "a||l"}})
		testutil.Must(t, err)
		for _, after := range []string{"", "a||k"} {
			_, err = store.List(ctx, state.ListRequest{Prefix: "a||", After: after, Limit: 2})
			testutil.Must(t, err)
		}
		_, err = store.Transact(ctx, state.TransactRequest{Operations: []state.Operation{
			{Kind: state.Remove, Write: state.Write{Key: "a||k", ETag: etag}}, {Write: statetest.Put("a||j", "1")}}})
		testutil.Must(t, err)
		_, err = store.Delete(ctx, state.DeleteRequest{Key: "a||l"})
		testutil.Must(t, err)
		_, err = store.Delete(ctx, state.DeleteRequest{Key: "a||m", ETag: "0000000000000001"})
		statetest.WantFault(t, err, fault.Conflict, "ETag")
		testutil.Must(t, store.Close())
		path := filepath.Join("testdata", fmt.Sprintf("v%d.golden", version))
		got := s.transcript()
		if *update {
			testutil.Must(t, os.WriteFile(path, []byte(got), 0o600))
		}
		want, err := os.ReadFile(path)
		testutil.Must(t, err)
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
}
