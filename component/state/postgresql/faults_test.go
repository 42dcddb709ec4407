package postgresql_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// opening returns a function that opens a store with the settings in pairs, and closes it again.
func opening(t *testing.T, version postgresql.Version, pairs ...string) func(context.Context) error {
	t.Helper()
	return func(ctx context.Context) error {
		t.Helper()
		s, err := open(ctx, t, postgresql.Options{Version: version}, pairs...)
		if err == nil {
			_ = s.Close()
		}
		return err
	}
}

func TestOpen_Unreachable(t *testing.T) {
	t.Parallel()
	port := statetest.FreePort(t)
	err := statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString",
		"postgres://shop:hidden@127.0.0.1:"+port+"/orders?sslmode=disable"),
		fault.Unavailable, "127.0.0.1:"+port, `"orders"`, "connection refused")
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestOpen_Settings(t *testing.T) {
	for want, pairs := range map[string][]string{
		"connectionString is missing": {},
		"cannot be read":              {"connectionString", "postgres://u:hidden@h:port/x"},
		"is a URL":                    {"connectionString", "postgres://h/x", "user", "u"},
	} {
		err := statetest.WantOpenFault(t, opening(t, postgresql.V2, pairs...), fault.Invalid, want)
		if strings.Contains(err.Error(), "hidden") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	for want, pairs := range map[string][]string{
		"tablePrefix":               {"tablePrefix", "a;b"},
		"metadataTableName":         {"metadataTableName", "a b"},
		"less than a second":        {"timeout", "10ms"},
		"cleanupInterval":           {"cleanupInterval", "soon"},
		"none of cache_statement":   {"queryExecMode", "fast"},
		"Entra ID is not supported": {"useAzureAD", "true"},
		"AWS IAM is not supported":  {"useAWSIAM", "true"},
	} {
		_, err := checked(postgresql.V2, pairs...)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", pairs, err, want)
		}
	}
	if _, err := checked(postgresql.V1, "tableName", "drop table"); !fault.Is(err, fault.Invalid) {
		t.Errorf("a table name with a space: %v", err)
	}
}

func TestOpen_Credentials(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	s.Do("CREATE ROLE shop LOGIN PASSWORD 'secret'")
	testutil.Must(t, os.WriteFile(filepath.Join(s.Data, "pg_hba.conf"),
		[]byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o600))
	s.Do("SELECT pg_reload_conf()")
	base := "host=127.0.0.1 sslmode=disable dbname=postgres"
	login := []string{"connectionString", base, "port", s.Port, "user", "shop", "password"}
	testutil.Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
		defer cancel()
		if err := opening(t, postgresql.V2, append(login, "wrong")...)(ctx); !fault.Is(err, fault.Denied) {
			return fmt.Errorf("opening with a wrong password: %w", err)
		}
		return nil
	})
	statetest.WantOpenFault(t, opening(t, postgresql.V2, append(login, "wrong")...), fault.Denied,
		"refused the user or the password")
	statetest.WantOpenFault(t, opening(t, postgresql.V2, append(login, "secret")...), fault.Denied,
		"creating the table", "grant")
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", s.URL()+"&dbname=missing"),
		fault.Invalid, "does not exist")

	// If the tables exist, the documented rights are sufficient.
	opened(t, postgresql.V2, "connectionString", s.URL())
	s.Do("GRANT SELECT, INSERT, UPDATE, DELETE ON state, dapr_metadata TO shop")
	store := opened(t, postgresql.V2, append(login, "secret")...)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1"), statetest.Put("a||l", "1")))
	_, err := store.Delete(t.Context(), state.DeleteRequest{Key: "a||k"})
	testutil.Must(t, err)
	s.Do("REVOKE ALL ON state FROM shop")
	statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")), fault.Denied, "grant")
	_, err = statetest.Get(t.Context(), store, "a||k")
	statetest.WantFault(t, err, fault.Denied, "grant")
}

func TestOpen_Standby(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	s.ShutDown()
	testutil.Must(t, os.WriteFile(filepath.Join(s.Data, "standby.signal"), nil, 0o644))
	s.Run()
	s.Wait()
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", s.URL()), fault.Unavailable,
		"is a standby")
	testutil.Eventually(t, func() error {
		if err := statetest.Set(t.Context(), store, statetest.Put("a||k", "2")); !strings.Contains(err.Error(),
			"standby") {
			return err
		}
		return nil
	})
}

func TestOpen_ManyAtOnceCreateTheTablesOnce(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	for _, version := range []postgresql.Version{postgresql.V1, postgresql.V2} {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				pairs := []string{"connectionString", s.URL(), "metadataTableName", "meta"}
				if version == postgresql.V2 {
					pairs = append(pairs, "tablePrefix", "second_")
				}
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testutil.Patience)
				defer cancel()
				store, err := open(ctx, t, postgresql.Options{Version: version}, pairs...)
				if err != nil {
					t.Error(err)
					return
				}
				_ = store.Close()
			})
		}
		wg.Wait()
	}
}

func TestStore_RecoversFromCrash(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "1")))
	s.Kill()
	for range 3 { // the connections that were open fail first
		err := statetest.Set(ctx, store, statetest.Put("a||k", "1"))
		if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Indeterminate) {
			t.Errorf("a write without a server: %v with code %q", err, fault.CodeOf(err))
		}
	}
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "1")), fault.Unavailable,
		"connection refused")
	_, err := statetest.Get(ctx, store, "a||k")
	statetest.WantFault(t, err, fault.Unavailable, "connection refused")
	s.Run()
	s.Wait()
	statetest.WantValue(t, store, "a||k", "1")
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")))
}

func TestStore_PausedServerMakesWritesIndeterminate(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	s.Pause(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")), fault.Indeterminate,
		"may have been applied")
	s.Pause(false)
	testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, statetest.Put("a||k", "3")) })
	statetest.WantValue(t, store, "a||k", "3")
}

func TestStore_LockedRowTimesOut(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL()+"&statement_timeout=200")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	other, err := pgx.Connect(t.Context(), s.URL())
	testutil.Must(t, err)
	defer other.Close(context.WithoutCancel(t.Context()))
	tx, err := other.Begin(t.Context())
	testutil.Must(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE state SET value = '2' WHERE key = 'a||k'")
	testutil.Must(t, err)
	statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "3")), fault.Timeout,
		"statement_timeout")
	testutil.Must(t, tx.Rollback(t.Context()))
	statetest.WantValue(t, store, "a||k", "1")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "3")))
}

// TestStore_CloseKeepsWritesIndeterminate loses the server of a write that waits for a lock, while the store closes.
func TestStore_CloseKeepsWritesIndeterminate(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	other, err := pgx.Connect(t.Context(), s.URL())
	testutil.Must(t, err)
	defer other.Close(context.WithoutCancel(t.Context()))
	tx, err := other.Begin(t.Context())
	testutil.Must(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE state SET value = '2' WHERE key = 'a||k'")
	testutil.Must(t, err)
	written, closed := make(chan error, 1), make(chan error, 1)
	go func() { written <- statetest.Set(t.Context(), store, statetest.Put("a||k", "3")) }()
	testutil.Eventually(t, func() error {
		if n := s.Do("SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'"); n == "0" {
			return errors.New("the write does not wait for the lock yet")
		}
		return nil
	})
	go func() { closed <- store.Close() }()
	testutil.Eventually(t, func() error {
		if _, err := statetest.Get(t.Context(), store, "a||k"); err == nil {
			return errors.New("the store is open")
		}
		return nil
	})
	s.Kill()
	statetest.WantFault(t, <-written, fault.Indeterminate, "may have been applied")
	testutil.Must(t, <-closed)
}

// TestStore_ErrorsOfProxiesMakeWritesIndeterminate has the server answer as a proxy does that has lost its server: the
// proxy does not know whether the server has executed the write.
func TestStore_ErrorsOfProxiesMakeWritesIndeterminate(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	s.Do(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'server conn crashed?' USING ERRCODE = convert_from(NEW.value, 'UTF8'); END $$`)
	s.Do("CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON state DEFERRABLE INITIALLY DEFERRED " +
		"FOR EACH ROW EXECUTE FUNCTION refuse()")
	for code, want := range map[string]fault.Code{"08P01": fault.Indeterminate, "08006": fault.Indeterminate,
		"57P01": fault.Indeterminate, "58000": fault.Indeterminate, "40003": fault.Indeterminate,
		"57014": fault.Timeout, "22000": fault.Invalid} {
		text := "may have been applied"
		if want != fault.Indeterminate {
			text = ""
		}
		statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("a||k", code)), want, text)
	}
}

func TestStore_KeysThatPostgreSQLCannotHave(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	ctx := t.Context()
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||b\x00", "1")), fault.Invalid, "NUL")
	item, err := statetest.Get(ctx, store, "a||b\x00")
	if err != nil || item.Found() {
		t.Errorf("Get = %+v, %v", item, err)
	}
	random := make([]byte, 4000)
	for i := range random {
		random[i] = 'a' + byte(rand.IntN(26))
	}
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||"+string(random), "1")), fault.TooLarge,
		"too long")
}

func TestStore_RefusesRequestIDs(t *testing.T) {
	t.Parallel()
	store := opened(t, postgresql.V2, "connectionString", databases.Start(t).URL())
	_, err := store.Set(t.Context(), state.SetRequest{Items: []state.Write{statetest.Put("a||k", "1")},
		RequestID: "r"})
	statetest.WantFault(t, err, fault.Invalid, "request ids")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "12345")))
	_, err = store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||k", "a||k"}, MaxBytes: 9})
	statetest.WantFault(t, err, fault.TooLarge, "9 bytes")
}

// TestStore_NoUpdateIsLostWhileServerRestarts increments a counter with ETag conditions while the server is killed and
// started again.
func TestStore_NoUpdateIsLostWhileServerRestarts(t *testing.T) {
	t.Parallel()
	const writers, restarts, key = 4, 4, "a||counter"
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL())
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put(key, "0")))
	var certain, maybe atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for ctx.Err() == nil {
				item, err := statetest.Get(t.Context(), store, key)
				if err != nil {
					continue
				}
				n, _ := strconv.Atoi(string(item.Value))
				next := state.Write{Key: key, Value: []byte(strconv.Itoa(n + 1)), ETag: item.ETag}
				err = statetest.Set(t.Context(), store, next)
				switch {
				case err == nil:
					certain.Add(1)
				case fault.Is(err, fault.Indeterminate):
					maybe.Add(1)
				case !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable):
					t.Errorf("a write failed with %v, code %q", err, fault.CodeOf(err))
				}
			}
		})
	}
	for range restarts {
		before := certain.Load()
		testutil.Eventually(t, func() error {
			if certain.Load() < before+20 {
				return errors.New("too few")
			}
			return nil
		})
		s.Kill()
		s.Run()
		s.Wait()
	}
	stop()
	wg.Wait()
	item, err := statetest.Get(t.Context(), store, key)
	testutil.Must(t, err)
	n, err := strconv.ParseInt(string(item.Value), 10, 64)
	testutil.Must(t, err)
	if n < certain.Load() || n > certain.Load()+maybe.Load() {
		t.Errorf("the counter is %d after %d acknowledged and %d unknown updates", n, certain.Load(), maybe.Load())
	}
	t.Logf("counter %d, acknowledged %d, unknown %d", n, certain.Load(), maybe.Load())
}
