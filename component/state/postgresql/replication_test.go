package postgresql_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// follow starts a standby of primary. It adds the settings to postgresql.conf of both servers and restarts primary.
func follow(t *testing.T, primary *postgrestest.Server, settings ...string) *postgrestest.Server {
	t.Helper()
	primary.ShutDown()
	standby := primary.Copy(t)
	primary.Configure(settings...)
	primary.Run()
	primary.Wait()
	standby.Configure("primary_conninfo = 'host=127.0.0.1 user=postgres port=" + primary.Port + "'")
	testutil.Must(t, os.WriteFile(filepath.Join(standby.Data, "standby.signal"), nil, 0o644))
	standby.Run()
	standby.Wait()
	testutil.Eventually(t, func() error {
		got, err := primary.Try(t.Context(), "SELECT state FROM pg_stat_replication")
		if err == nil && got != "streaming" {
			err = fmt.Errorf("the standby is %q\n%s", got, standby.Log())
		}
		return err
	})
	return standby
}

// both returns a connection string that finds the primary among two servers.
func both(a, b *postgrestest.Server) string {
	return "postgres://postgres@127.0.0.1:" + a.Port + ",127.0.0.1:" + b.Port +
		"/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=2"
}

// TestStore_FailsOverToSynchronousStandby kills the primary under load and promotes its standby. The history of both
// servers together is linearizable.
func TestStore_FailsOverToSynchronousStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two servers and kills one of them")
	}
	primary := databases.Start(t)
	opened(t, postgresql.V2, "connectionString", primary.URL())
	standby := follow(t, primary, "synchronous_standby_names = '*'")
	store := opened(t, postgresql.V2, "connectionString", both(primary, standby), "timeout", "5s")
	r := statetest.Record(t, store, "a||1", "a||2", "a||3", "a||4")
	r.More(300)
	if item, err := statetest.Get(t.Context(), store, "a||1"); err != nil || item.Level != state.Linearizable {
		t.Errorf("with a synchronous standby: level %q, %v", item.Level, err)
	}
	primary.Kill()
	r.Failed(1, fault.Indeterminate, fault.Unavailable)
	standby.Do("SELECT pg_promote()")
	r.More(300)
	r.Check()
	if got := standby.Do("SELECT pg_is_in_recovery()"); got != "false" {
		t.Errorf("the standby is in recovery: %s", got)
	}
}

// TestStore_AsynchronousStandbyLowersTheLevel adds an asynchronous standby to a server that a store uses.
func TestStore_AsynchronousStandbyLowersTheLevel(t *testing.T) {
	t.Parallel()
	primary := databases.Start(t)
	store := opened(t, postgresql.V2, "connectionString", primary.URL())
	level := func() state.Level {
		// follow restarts the server; the pool may still have a connection that the server has ended.
		testutil.Eventually(t, func() error { return store.Ping(t.Context()) })
		item, err := statetest.Get(t.Context(), store, "a||k")
		testutil.Must(t, err)
		return item.Level
	}
	if got := level(); got != state.Linearizable {
		t.Errorf("one server answers at level %q", got)
	}
	standby := follow(t, primary)
	if got := level(); got != state.Stale {
		t.Errorf("a primary with an asynchronous standby answers at level %q", got)
	}
	statetest.WantOpenFault(t, opening(t, postgresql.V2, "connectionString", standby.URL()), fault.Unavailable,
		"is a standby", "target_session_attrs")
	other := opened(t, postgresql.V2, "connectionString", both(standby, primary))
	testutil.Must(t, statetest.Set(t.Context(), other, statetest.Put("a||k", "1")))
	statetest.WantValue(t, store, "a||k", "1")
}
