package sqlserver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// once opens a store in one attempt, because the context has no deadline.
func once(t *testing.T, o sqlserver.Options, pairs ...string) error {
	t.Helper()
	s, err := open(t.Context(), t, o, pairs...)
	if err == nil {
		_ = s.Close()
	}
	return err
}

func TestOpen_Unreachable(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + statetest.FreePort(t)
	err := once(t, sqlserver.Options{}, "connectionString", "sqlserver://shop:hidden@"+address)
	statetest.WantFault(t, err, fault.Unavailable, "no SQL Server can be reached at "+address, `"dapr"`)
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestOpen_WaitsForServer(t *testing.T) {
	s := start(t)
	s.kill()
	address := uri(s)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testutil.Patience)
		defer cancel()
		store, err := open(ctx, t, sqlserver.Options{}, "connectionString", address)
		if err == nil {
			err = store.Close()
		}
		done <- err
	}()
	s.run()
	testutil.Must(t, <-done)
}

func TestOpen_Settings(t *testing.T) {
	err := once(t, sqlserver.Options{}, "connectionString", "sqlserver://u:hid@den@h:x/")
	statetest.WantFault(t, err, fault.Invalid, "connectionString cannot be read")
	if strings.Contains(err.Error(), "den") {
		t.Errorf("the error shows the password: %v", err)
	}
	for want, pairs := range map[string][]string{
		"connectionString is missing":           {"tableName", "state"},
		"not a name of letters, digits and _":   {"connectionString", "x", "tableName", "state]; DROP TABLE x"},
		"not a name of 1 to 100 letters":        {"connectionString", "x", "schemaName", strings.Repeat("x", 101)},
		"none of string, uuid, integer":         {"connectionString", "x", "keyType", "text"},
		"not a whole number from 1 to 850":      {"connectionString", "x", "keyLength", "0"},
		"is not JSON such as":                   {"connectionString", "x", "indexedProperties", "id"},
		"a column whose name is not of letters": {"connectionString", "x", "indexedProperties", `[{"column": "a b"}]`},
		"a property that is not of letters": {"connectionString", "x", "indexedProperties",
			`[{"column": "a", "property": "'"}]`},
		"a type that is not one such as int": {"connectionString", "x", "indexedProperties",
			`[{"column": "a", "property": "a", "type": ";"}]`},
		"neither a duration such as 30s":         {"connectionString", "x", "cleanupInterval", "soon"},
		"bulkGetChunkSize cannot be used: it be": {"connectionString", "x", "bulkGetChunkSize", "5"},
	} {
		_, err := checked(sqlserver.V1, pairs...)
		statetest.WantFault(t, err, fault.Invalid, want)
	}
}

func TestOpen_Refusals(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, c := range []struct {
		number int32
		code   fault.Code
		text   string
	}{
		{18456, fault.Denied, "user or the password"},
		{40615, fault.Denied, "firewall"},
		{4060, fault.Unavailable, "does not exist, is starting"},
		{40613, fault.Unavailable, "not the primary"},
		{18401, fault.Unavailable, "starting or stopping"},
		{49918, fault.Overloaded, "throttles"},
		{9999, fault.Denied, "refused the login"},
	} {
		s.fail("LOGIN", reaction{number: c.number})
		statetest.WantFault(t, once(t, sqlserver.Options{}, "connectionString", uri(s)), c.code, c.text)
	}
	s.heal()
	s.password = "other"
	err := once(t, sqlserver.Options{}, "connectionString", uri(s))
	statetest.WantFault(t, err, fault.Denied, "user or the password")
	s.password = "secret"
	s.fail("sp_getapplock", reaction{number: 262})
	err = once(t, sqlserver.Options{}, "connectionString", uri(s))
	statetest.WantFault(t, err, fault.Denied, "creating the table state", "may not do this")
	s.fail("sp_getapplock", reaction{number: 2714, late: true, once: true}) // another node has created the table
	testutil.Must(t, once(t, sqlserver.Options{}, "connectionString", uri(s)+"&app name=x"))
}

func TestOpen_Database(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.access = "READ_ONLY"
	err := once(t, sqlserver.Options{}, "connectionString", uri(s))
	statetest.WantFault(t, err, fault.Unavailable, "is a replica", "ApplicationIntent")
	s.access, s.level = "READ_WRITE", 120
	err = once(t, sqlserver.Options{}, "connectionString", uri(s))
	statetest.WantFault(t, err, fault.Invalid, "COMPATIBILITY_LEVEL = 130")
	s.level = 160
	server := "sqlserver://shop:secret@" + s.Address() + "?encrypt=disable"
	testutil.Must(t, once(t, sqlserver.Options{}, "connectionString", server, "databaseName", "shop"))
	if !s.exists("shop") {
		t.Error("the database was not created")
	}
	last := s.logins[len(s.logins)-1]
	if last.database != "shop" || last.app != "quorate" {
		t.Errorf("the last login is %+v", last)
	}
}

func TestOpen_Levels(t *testing.T) {
	for _, c := range []struct {
		snapshot, replica bool
		one, many         state.Level
		log               string
	}{
		{true, false, state.Linearizable, state.Linearizable, ""},
		{false, false, state.Linearizable, state.Stale, "READ_COMMITTED_SNAPSHOT ON"},
		{true, true, state.Stale, state.Stale, ""},
	} {
		s := start(t)
		s.snapshot, s.replica = c.snapshot, c.replica
		var log bytes.Buffer
		store, err := open(t.Context(), t, sqlserver.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))},
			"connectionString", uri(s))
		testutil.Must(t, err)
		item, err := statetest.Get(t.Context(), store, "k")
		testutil.Must(t, err)
		page, err := store.List(t.Context(), state.ListRequest{Prefix: "k"})
		testutil.Must(t, err)
		if item.Level != c.one || page.Level != c.many || c.log == "" != (log.Len() == 0) ||
			!strings.Contains(log.String(), c.log) {
			t.Errorf("%+v: levels %s and %s, log %s", c, item.Level, page.Level, &log)
		}
		testutil.Must(t, store.Close())
	}
}

func TestStore_RecoversFromOutage(t *testing.T) {
	s := start(t)
	store := opened(t, s, sqlserver.V1)
	statetest.CheckOutage(t, store, s.kill, s.run, "no SQL Server can be reached")
}

// TestStore_LostAnswerMakesWritesIndeterminate loses the answer to each kind of write, and checks that the store sent
// the write only once.
func TestStore_LostAnswerMakesWritesIndeterminate(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]reaction{
		"stalls": {stall: true}, "says nothing": {dead: true}, "connection ends": {cut: true},
		"connection ends after the commit": {cut: true, late: true}, "severed": {number: 596, class: 21},
		"service error": {number: 40197, class: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			store := opened(t, s, sqlserver.V1)
			// indeterminate makes a write, and loses the answer to its request that contains part.
			indeterminate := func(part string, write func(ctx context.Context) error) {
				t.Helper()
				s.fail(part, lost)
				defer s.heal()
				before := s.sent(part)
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				statetest.WantFault(t, write(ctx), fault.Indeterminate, "may have been applied", "read the key")
				if n := s.sent(part) - before; n != 1 {
					t.Errorf("%s was sent %d times", part, n)
				}
			}
			indeterminate("UPDATE t", func(ctx context.Context) error {
				return statetest.Set(ctx, store, statetest.Put("a||k", "1"))
			})
			indeterminate("UPDATE t", func(ctx context.Context) error {
				return statetest.Set(ctx, store, statetest.Put("a||k", "2"), statetest.Put("a||l", "2"))
			})
			indeterminate("DELETE t", func(ctx context.Context) error {
				_, err := store.Delete(ctx, state.DeleteRequest{Key: "a||none"})
				return err
			})
			indeterminate("TM commit", func(ctx context.Context) error {
				return statetest.Set(ctx, store, state.Write{Key: "b||k", Value: []byte("1"),
					Concurrency: state.FirstWrite}, statetest.Put("b||l", "1"))
			})
			if lost.late {
				statetest.WantValue(t, store, "a||l", "2")
				statetest.WantValue(t, store, "b||l", "1")
			}
			testutil.Eventually(t, func() error {
				return statetest.Set(t.Context(), store, statetest.Put("a||k", "3"))
			})
			statetest.WantValue(t, store, "a||k", "3")
		})
	}
}

// TestStore_TransactionThatWasNotCommittedIsKnown loses an answer before the commit. The error must say that nothing
// was changed.
func TestStore_TransactionThatWasNotCommittedIsKnown(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s, sqlserver.V1)
	for _, part := range []string{"TM begin", "OPENJSON", "UPDATE t"} {
		for _, lost := range []reaction{{cut: true}, {stall: true}} {
			s.fail(part, lost)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			err := statetest.Set(ctx, store, state.Write{Key: "k", Value: []byte("1"), Concurrency: state.FirstWrite},
				statetest.Put("l", "1"))
			cancel()
			if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Timeout) {
				t.Errorf("%s, %+v: %v with code %q", part, lost, err, fault.CodeOf(err))
			}
			s.heal()
			if item, err := statetest.Get(t.Context(), store, "l"); err != nil || item.Found() {
				t.Errorf("%s, %+v: %+v, %v", part, lost, item, err)
			}
		}
	}
}

func TestStore_AnswersOfServer(t *testing.T) {
	s := start(t)
	store := opened(t, s, sqlserver.V1)
	for _, c := range []struct {
		number int32
		code   fault.Code
		text   string
	}{
		{229, fault.Denied, "docs/components/state.sqlserver.md"},
		{208, fault.Unavailable, "table does not exist"},
		{207, fault.Invalid, "spec.version"},
		{334, fault.Invalid, "trigger"},
		{976, fault.Unavailable, "listener"},
		{3906, fault.Unavailable, "not the primary"},
		{40501, fault.Overloaded, "throttles"},
		{10928, fault.Overloaded, "throttles"},
		{701, fault.Overloaded, "lacks resources"},
		{1222, fault.Timeout, "long transaction"},
		{9002, fault.ReadOnly, "full"},
		{40544, fault.ReadOnly, "quota"},
		{2628, fault.TooLarge, "longer than its column"},
		{1946, fault.TooLarge, "900 bytes"},
		{2627, fault.Invalid, "takes another key"},
		{13609, fault.Invalid, "indexedProperties"},
		{245, fault.Invalid, "indexed property"},
		{50000, fault.Internal, "answered with an error"},
	} {
		s.fail("UPDATE t", reaction{number: c.number})
		err := statetest.Set(t.Context(), store, statetest.Put("a||k", "1"))
		if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%d: %v with code %q, want %q", c.number, err, fault.CodeOf(err), c.code)
		}
	}
	s.heal()
	_, err := store.Set(t.Context(), state.SetRequest{Items: []state.Write{statetest.Put("a||k", "1")}, RequestID: "r"})
	statetest.WantFault(t, err, fault.Invalid, "request ids")
	for key, want := range map[string]string{strings.Repeat("é", 201): "200 characters", "a ": "ends with a space",
		"a\n": "control character", "a\xff": "not UTF-8"} {
		err := statetest.Set(t.Context(), store, statetest.Put(key, "1"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key %q: %v", key, err)
		}
		if item, err := statetest.Get(t.Context(), store, key); err != nil || item.Found() {
			t.Errorf("key %q: %+v, %v", key, item, err)
		}
	}
	_, err = store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||k"}, MaxBytes: 1})
	testutil.Must(t, err)
}

func TestStore_ReadsTimeOutAndAreTriedAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s, sqlserver.V1)
	for _, silent := range []reaction{{stall: true}, {dead: true}} {
		s.fail("SELECT t.[Key]", silent)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := statetest.Get(ctx, store, "a||k")
		cancel()
		statetest.WantFault(t, err, fault.Timeout, "did not answer in time")
	}
	s.fail("SELECT t.[Key]", reaction{cut: true})
	before := s.sent("SELECT t.[Key]")
	_, err := statetest.Get(t.Context(), store, "a||k")
	statetest.WantFault(t, err, fault.Unavailable, "was lost")
	if n := s.sent("SELECT t.[Key]") - before; n != 3 {
		t.Errorf("the read was sent %d times", n)
	}
}

// TestStore_DeadlocksAreTriedAgain checks that the store repeats a transaction after a deadlock. It returns an error
// if every attempt ends in a deadlock.
func TestStore_DeadlocksAreTriedAgain(t *testing.T) {
	s := start(t)
	store := opened(t, s, sqlserver.V1)
	s.fail("UPDATE t", reaction{number: 1205})
	two := []state.Write{{Key: "k", Value: []byte("1"), Concurrency: state.FirstWrite}, statetest.Put("l", "1")}
	statetest.WantFault(t, statetest.Set(t.Context(), store, two...), fault.Overloaded, "write the same keys")
	if n := s.sent("UPDATE t"); n != 10 {
		t.Errorf("the transaction was tried %d times", n)
	}
	s.heal()
	testutil.Must(t, statetest.Set(t.Context(), store, two...))
}

func TestStore_RemovesExpiredRows(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s, sqlserver.V1, "cleanupInterval", "1")
	other := opened(t, s, sqlserver.V1, "cleanupInterval", "0")
	ttl := state.TTL{Set: true, Seconds: 5}
	testutil.Must(t, statetest.Set(t.Context(), other, state.Write{Key: "k", Value: []byte("1"), TTL: ttl},
		statetest.Put("l", "1")))
	s.leap(10 * time.Second)
	testutil.Eventually(t, func() error {
		s.Lock()
		defer s.Unlock()
		if len(s.rows) != 1 {
			return fault.New(fault.Internal, "test", "the expired row is still there")
		}
		return nil
	})
	statetest.WantValue(t, store, "l", "1")
	s.Lock()
	defer s.Unlock()
	if _, there := s.claims["last-cleanup"]; !there || len(s.claims) != 1 {
		t.Errorf("the metadata table has %v", s.claims)
	}
}

// Dapr has one cleanup row for all tables with the same metadata table. The keys of that table can be shorter than the
// key of a row.
func TestStore_RemovesExpiredRowsOfEachTable(t *testing.T) {
	t.Parallel()
	for length, claims := range map[int64]int{400: 2, 2 * 15: 1} {
		s := start(t)
		s.name, s.metadata = "orders", length
		s.claims["last-cleanup"] = time.Now().Add(24 * time.Hour)
		store := opened(t, s, sqlserver.V1, "tableName", "orders", "cleanupInterval", "50ms")
		testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "k", Value: []byte("1"),
			TTL: state.TTL{Set: true, At: new(time.Unix(1, 0))}}))
		testutil.Eventually(t, func() error {
			s.Lock()
			defer s.Unlock()
			if len(s.rows) != 0 || len(s.claims) != claims {
				return fmt.Errorf("the tables have %v and %v", s.rows, s.claims)
			}
			return nil
		})
	}
}
