package postgresql_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestStore_ReadsAndWritesDataOfDaprV2(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL(), "tablePrefix", "dapr_")
	if got := s.Do("SELECT value FROM dapr_metadata WHERE key = 'migrations-state-v2-dapr_'"); got != "1" {
		t.Errorf("the metadata table has %q steps, want 1", got)
	}
	dapr := func(value string) string {
		return s.Do(`INSERT INTO dapr_state (key, value, etag) VALUES ('shop||k', $1, gen_random_uuid())
ON CONFLICT (key) DO UPDATE SET value = excluded.value, etag = excluded.etag, updated_at = now() RETURNING etag::text`,
			[]byte(value))
	}
	etag := dapr(`{"n":1}`)
	if item := statetest.WantValue(t, store, "shop||k", `{"n":1}`); item.ETag != etag || item.ContentType != "" {
		t.Errorf("ETag %q and content type %q, want %q and none", item.ETag, item.ContentType, etag)
	}
	testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "shop||k", Value: []byte("12"), ETag: etag,
		ContentType: state.OctetStream}))
	item := statetest.WantValue(t, store, "shop||k", "12")
	if item.ContentType != state.OctetStream {
		t.Errorf("bytes that are also JSON have content type %q", item.ContentType)
	}
	row := s.Do(`SELECT convert_from(value, 'UTF8') || ' ' || etag || ' ' || (updated_at IS NOT NULL) || ' ' ||
(expires_at IS NULL) FROM dapr_state`)
	if want := "12 " + item.ETag + " true true"; row != want {
		t.Errorf("the row is %q, want %q", row, want)
	}
	dapr(`13`)
	if item := statetest.WantValue(t, store, "shop||k", "13"); item.ContentType != "" {
		t.Errorf("JSON that Dapr wrote over bytes has content type %q", item.ContentType)
	}
	dapr("\x00\xff")
	if item := statetest.WantValue(t, store, "shop||k", "\x00\xff"); item.ContentType != state.OctetStream {
		t.Errorf("bytes that Dapr wrote have content type %q", item.ContentType)
	}
	stale := state.Write{Key: "shop||k", Value: []byte("1"), ETag: item.ETag}
	statetest.WantFault(t, statetest.Set(t.Context(), store, stale), fault.Conflict)
}

func TestStore_ReadsAndWritesDataOfDaprV1(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	// These are the tables of an old version of Dapr, before the second migration step.
	s.Do("CREATE TABLE dapr_metadata (key text NOT NULL PRIMARY KEY, value text NOT NULL)")
	s.Do("INSERT INTO dapr_metadata VALUES ('migrations', '1')")
	s.Do(`CREATE TABLE orders (key text NOT NULL PRIMARY KEY, value jsonb NOT NULL, isbinary boolean NOT NULL,
insertdate timestamptz NOT NULL DEFAULT now(), updatedate timestamptz NULL)`)
	s.Do(`INSERT INTO orders (key, value, isbinary) VALUES ('shop||k', '{"n": 1}', false), ('shop||b', '"AP8="', true)`)
	store := opened(t, postgresql.V1, "connectionString", s.URL(), "tableName", "orders")
	if got := s.Do("SELECT value FROM dapr_metadata WHERE key = 'migrations'"); got != "2" {
		t.Errorf("the metadata table has %q steps, want 2", got)
	}
	item := statetest.WantValue(t, store, "shop||k", `{"n": 1}`)
	if xmin := s.Do("SELECT xmin::text FROM orders WHERE key = 'shop||k'"); item.ETag != xmin {
		t.Errorf("ETag is %q, the transaction %s", item.ETag, xmin)
	}
	if item := statetest.WantValue(t, store, "shop||b", "\x00\xff"); item.ContentType != state.OctetStream {
		t.Errorf("bytes have content type %q", item.ContentType)
	}
	testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "shop||k", Value: []byte(`{"n":2}`),
		ETag: item.ETag},
		state.Write{Key: "shop||b", Value: []byte{1, 2}, ContentType: state.OctetStream}))
	row := s.Do(`SELECT string_agg(value::text || ' ' || isbinary, ', ' ORDER BY key) FROM orders`)
	if want := `"AQI=" true, {"n": 2} false`; row != want {
		t.Errorf("the rows are %s, want %s", row, want)
	}
	statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("shop||k", `"\u0000"`)), fault.Invalid,
		"jsonb", "v2")
}

// TestStore_UndecodableValueFailsAlone reads a v1 row whose value is not base64, alone and with another row.
func TestStore_UndecodableValueFailsAlone(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V1, "connectionString", s.URL())
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||good", "1")))
	s.Do(`INSERT INTO state (key, value, isbinary) VALUES ('a||bad', '{"n": 1}', true)`)
	_, err := statetest.Get(t.Context(), store, "a||bad")
	statetest.WantFault(t, err, fault.Corrupt, "not base64")
	items, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||bad", "a||good"}})
	testutil.Must(t, err)
	statetest.WantFault(t, items[0].Err, fault.Corrupt, "not base64")
	if items[0].Found() || items[0].Value != nil {
		t.Errorf("the item that cannot be read is %+v", items[0])
	}
	if items[1].Err != nil || string(items[1].Value) != "1" {
		t.Errorf("the other item is %+v", items[1])
	}
	page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 2 {
		t.Errorf("List = %+v, %v", page, err)
	}
}

func TestStore_ListsWithoutValues(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	for version, prefix := range map[postgresql.Version]string{postgresql.V1: "", postgresql.V2: "v2_"} {
		pairs := []string{"connectionString", s.URL()}
		if version == postgresql.V2 {
			pairs = append(pairs, "tablePrefix", prefix)
		}
		store := opened(t, version, pairs...)
		testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1"), state.Write{Key: "a||b",
			Value: []byte{1}, ContentType: state.OctetStream}))
		page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||"})
		if err != nil || len(page.Items) != 2 {
			t.Fatalf("List = %+v, %v", page, err)
		}
		for _, item := range page.Items {
			if item.Value != nil || item.ContentType != "" || item.ETag == "" {
				t.Errorf("the listing has %+v", item)
			}
		}
	}
}

func TestOpen_TableOfOtherVersion(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	opened(t, postgresql.V1, "connectionString", s.URL())
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", s.URL()), fault.Invalid, "other columns",
		"spec.version")
}

func TestStore_RemovesExpiredRows(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	for _, version := range []postgresql.Version{postgresql.V1, postgresql.V2} {
		prefix := map[postgresql.Version]string{postgresql.V1: "", postgresql.V2: "app."}[version]
		pairs := []string{"connectionString", s.URL(), "cleanupInterval", "100ms"}
		if version == postgresql.V2 {
			s.Do("CREATE SCHEMA app")
			pairs = append(pairs, "tablePrefix", prefix)
		}
		store := opened(t, version, pairs...)
		brief := statetest.Put("a||brief", "1")
		brief.TTL = state.TTL{Set: true, Seconds: 1}
		testutil.Must(t, statetest.Set(t.Context(), store, brief, statetest.Put("a||stays", "1")))
		testutil.Eventually(t, func() error {
			if got := s.Do("SELECT string_agg(key, ' ') FROM " + prefix + "state"); got != "a||stays" {
				return errors.New(got)
			}
			return nil
		})
	}
	keys := s.Do("SELECT string_agg(key, ' ' ORDER BY key) FROM dapr_metadata WHERE key LIKE 'last%'")
	if want := "last-cleanup last-cleanup-state-v2-app."; keys != want {
		t.Errorf("the metadata table has %q, want %q", keys, want)
	}
}

// The year 9999 is too far for a time.Duration.
func TestStore_ExpiryInTheYear9999(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	last := time.Unix(state.LastExpiry, 0)
	testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "a||own", Value: []byte("1"),
		TTL: state.TTL{Set: true, At: &last}}))
	s.Do(`INSERT INTO state (key, value, expires_at) VALUES ('a||last', '1', '9999-12-31 23:59:59Z'),
('a||later', '1', '200000-01-01 00:00:00Z'), ('a||infinity', '1', 'infinity')`)
	for _, key := range []string{"a||own", "a||last", "a||later", "a||infinity"} {
		if item := statetest.WantValue(t, store, key, "1"); item.Expires.Sub(last).Abs() > time.Second {
			t.Errorf("%s expires at %v, want %v", key, item.Expires, last)
		}
	}
	if got := s.Do(`SELECT (abs(extract(epoch FROM expires_at - '9999-12-31 23:59:59Z')) < 1)::text FROM state
WHERE key = 'a||own'`); got != "true" {
		t.Error("the row does not have the time of the request")
	}
}

// Dapr has one cleanup row for all v1 tables with the same metadata table.
func TestStore_RemovesExpiredRowsOfEachTable(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	opened(t, postgresql.V1, "connectionString", s.URL()) // creates the metadata table
	s.Do("INSERT INTO dapr_metadata VALUES ('last-cleanup', (now() + interval '1 day')::text)")
	store := opened(t, postgresql.V1, "connectionString", s.URL(), "tableName", "orders", "cleanupInterval", "100ms")
	past := statetest.Put("a||past", "1")
	past.TTL = state.TTL{Set: true, At: new(time.Unix(1, 0))}
	testutil.Must(t, statetest.Set(t.Context(), store, past, statetest.Put("a||stays", "1")))
	testutil.Eventually(t, func() error {
		if got := s.Do("SELECT string_agg(key, ' ') FROM orders"); got != "a||stays" {
			return errors.New(got)
		}
		return nil
	})
}

// All v1 tables with the same metadata table have one number of executed migration steps.
func TestOpen_CompletesAnOldTableBesideANewOne(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	opened(t, postgresql.V1, "connectionString", s.URL())
	s.Do(`CREATE TABLE orders (key text NOT NULL PRIMARY KEY, value jsonb NOT NULL, isbinary boolean NOT NULL,
insertdate timestamptz NOT NULL DEFAULT now(), updatedate timestamptz NULL)`)
	s.Do(`INSERT INTO orders (key, value, isbinary) VALUES ('shop||k', '1', false)`)
	store := opened(t, postgresql.V1, "connectionString", s.URL(), "tableName", "orders")
	statetest.WantValue(t, store, "shop||k", "1")
	if got := s.Do("SELECT value FROM dapr_metadata WHERE key = 'migrations'"); got != "2" {
		t.Errorf("the metadata table has %q steps, want 2", got)
	}
}

// TestStore_TransactionsThatCreateTheSameKeys checks that exactly one of many transactions succeeds, and that the
// others change nothing.
func TestStore_TransactionsThatCreateTheSameKeys(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	for _, version := range []postgresql.Version{postgresql.V1, postgresql.V2} {
		pairs := []string{"connectionString", s.URL()}
		if version == postgresql.V2 {
			pairs = append(pairs, "tablePrefix", "v2_")
		}
		store := opened(t, version, pairs...)
		for range 20 {
			var wg sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				wg.Go(func() {
					name := string(rune('a' + i))
					_, errs[i] = store.Transact(context.WithoutCancel(t.Context()), state.TransactRequest{
						Operations: []state.Operation{
							{Write: statetest.Put("t||own "+name, name)},
							{Write: state.Write{Key: "t||shared", Value: []byte(`"` + name + `"`),
								Concurrency: state.FirstWrite}},
							{Kind: state.Remove, Write: state.Write{Key: "t||none " + name}},
						}})
				})
			}
			wg.Wait()
			var won []string
			for i, err := range errs {
				name := string(rune('a' + i))
				if err == nil {
					won = append(won, name)
					continue
				}
				statetest.WantFault(t, err, fault.Conflict, "t||shared")
				if item, err := statetest.Get(t.Context(), store, "t||own "+name); err != nil || item.Found() {
					t.Errorf("a refused transaction left %+v, %v", item, err)
				}
			}
			if len(won) != 1 {
				t.Fatalf("winners: %v", won)
			}
			statetest.WantValue(t, store, "t||shared", `"`+won[0]+`"`)
			_, err := store.Transact(t.Context(), state.TransactRequest{Operations: []state.Operation{
				{Kind: state.Remove, Write: state.Write{Key: "t||shared"}},
				{Kind: state.Remove, Write: state.Write{Key: "t||own " + won[0]}}}})
			testutil.Must(t, err)
		}
	}
}

func TestStore_ListsThePrefixOnly(t *testing.T) {
	t.Parallel()
	store := opened(t, postgresql.V2, "connectionString", databases.Start(t).URL())
	all := []string{"a\U0010ffff", "a\U0010ffffb", "a퟿", "a\ue000", "b", "é", "\U0010ffff"}
	for _, key := range all {
		testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put(key, "1")))
	}
	for prefix, want := range map[string]string{"a\U0010ffff": "a\U0010ffff a\U0010ffffb", "a퟿": "a퟿",
		"\U0010ffff": "\U0010ffff", "é": "é", "a": "a퟿ a\ue000 a\U0010ffff a\U0010ffffb"} {
		page, err := store.List(t.Context(), state.ListRequest{Prefix: prefix})
		testutil.Must(t, err)
		var got []string
		for _, item := range page.Items {
			got = append(got, item.Key)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("List(%q) = %q, want %q", prefix, got, want)
		}
	}
}
