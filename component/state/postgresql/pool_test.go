package postgresql_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// locked runs a statement in a transaction, which keeps its locks until release is called.
func locked(s *postgrestest.Server, sql string) (release func()) {
	s.T.Helper()
	other, err := pgx.Connect(s.T.Context(), s.URL())
	testutil.Must(s.T, err)
	tx, err := other.Begin(s.T.Context())
	testutil.Must(s.T, err)
	_, err = tx.Exec(s.T.Context(), sql)
	testutil.Must(s.T, err)
	release = sync.OnceFunc(func() {
		ctx := context.WithoutCancel(s.T.Context())
		_ = tx.Rollback(ctx)
		_ = other.Close(ctx)
	})
	s.T.Cleanup(release)
	return release
}

// TestOpen_WaitsForTheMigrationOfAnotherNode opens a store while another connection holds the lock for migrations.
func TestOpen_WaitsForTheMigrationOfAnotherNode(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	s.Do("CREATE TABLE dapr_metadata (key text NOT NULL PRIMARY KEY, value text NOT NULL)")
	s.Do("INSERT INTO dapr_metadata VALUES ('lock', 'lock')")
	release := locked(s, "SELECT value FROM dapr_metadata WHERE key = 'lock' FOR UPDATE")
	type result struct {
		store *postgresql.Store
		err   error
	}
	results := make(chan result, 2)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	for range 2 {
		go func() {
			store, err := open(ctx, t, postgresql.Options{Version: postgresql.V2}, "connectionString", s.URL())
			results <- result{store, err}
		}()
	}
	testutil.Eventually(t, func() error {
		if n := s.Do("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"); n != "2" {
			return errors.New("waiting: " + n)
		}
		return nil
	})
	if got := s.Do("SELECT to_regclass('state')"); got != "<nil>" {
		t.Errorf("the table was created without the lock: %s", got)
	}
	release()
	for range 2 {
		r := <-results
		testutil.Must(t, r.err)
		testutil.Must(t, statetest.Set(t.Context(), r.store, statetest.Put("a||k", "1")))
		testutil.Must(t, r.store.Close())
	}

	// If the other migration does not end, Open returns an error with the reason.
	s.Do("DROP TABLE state")
	locked(s, "SELECT value FROM dapr_metadata WHERE key = 'lock' FOR UPDATE")
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", s.URL()), fault.Timeout,
		"creating the table state")
}

// TestStore_PoolIsBounded sends more concurrent requests than the pool may have connections.
func TestStore_PoolIsBounded(t *testing.T) {
	t.Parallel()
	const connections, requests = 2, 8
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL(), "maxConns", fmt.Sprint(connections))
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	release := locked(s, "UPDATE state SET value = value")
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			if err := statetest.Set(t.Context(), store, statetest.Put("a||k", fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	const used = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'quorate'"
	testutil.Eventually(t, func() error {
		if n := s.Do(used + " AND wait_event_type = 'Lock'"); n != fmt.Sprint(connections) {
			return errors.New("waiting: " + n)
		}
		return nil
	})
	if n := s.Do(used); n != fmt.Sprint(connections) {
		t.Errorf("%s connections, want %d", n, connections)
	}
	release()
	wg.Wait()
}

// TestStore_TimeoutOfTheComponent makes a write wait for a lock until the timeout of the component ends it. The
// outcome of the write is unknown.
func TestStore_TimeoutOfTheComponent(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL(), "timeout", "1s")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	release := locked(s, "UPDATE state SET value = value")
	begun := time.Now()
	statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "2")), fault.Indeterminate,
		"may have been applied")
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the write ended after %s, before its timeout", took)
	}
	release()
	testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, statetest.Put("a||k", "3")) })
	statetest.WantValue(t, store, "a||k", "3")
}

// TestStore_IdleConnectionsAreClosed waits until the pool has closed its idle connections.
func TestStore_IdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	s := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", s.URL()+"&pool_health_check_period=100ms",
		"connectionMaxIdleTime", "100ms")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	testutil.Eventually(t, func() error {
		if n := s.Do("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'quorate'"); n != "0" {
			return errors.New(n + " connections")
		}
		return nil
	})
	statetest.WantValue(t, store, "a||k", "1")
}
