package sqlserver_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	_ "github.com/microsoft/go-mssqldb"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checked returns the checked metadata of a component. pairs are names and values in turn.
func checked(version sqlserver.Version, pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "sqlserver", sqlserver.Fields(version))
	return values, err
}

func open(ctx context.Context, t *testing.T, o sqlserver.Options, pairs ...string) (*sqlserver.Store, error) {
	t.Helper()
	var err error
	if o.Version == 0 {
		o.Version = sqlserver.V1
	}
	if o.Metadata, err = checked(o.Version, pairs...); err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return sqlserver.Open(ctx, o)
}

// opened opens a store, which is closed at the end of the test. pairs are the names and values of additional
// settings.
func opened(t *testing.T, s *server, version sqlserver.Version, pairs ...string) *sqlserver.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	store, err := open(ctx, t, sqlserver.Options{Version: version}, append([]string{"connectionString", uri(s)},
		pairs...)...)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func uri(s *server) string {
	return "sqlserver://shop:secret@" + s.Address() + "?database=orders&encrypt=disable"
}

// clock is the clock of the fake servers in one run of the suite.
type clock struct {
	mu     sync.Mutex
	server *server
}

func (c *clock) use(s *server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = s
}

func (c *clock) current() *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// unstorable reports whether a table with the default length refuses a key.
func unstorable(key string) bool {
	control := func(r rune) bool { return r < ' ' }
	return strings.HasSuffix(key, " ") || strings.ContainsFunc(key, control) || len(utf16.Encode([]rune(key))) > 200
}

func TestStore_ConformanceOnFake(t *testing.T) {
	t.Parallel()
	for _, version := range []sqlserver.Version{sqlserver.V1, sqlserver.V2} {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			c := &clock{}
			o := statetest.Options{Unstorable: unstorable, Clock: &statetest.Clock{
				Now:     func() time.Time { return c.current().Now() },
				Advance: func(d time.Duration) { c.current().leap(d) }}}
			statetest.Run(t, func(t *testing.T) state.Store {
				s := start(t)
				c.use(s)
				store, err := open(t.Context(), t, sqlserver.Options{Version: version, Now: s.Now},
					"connectionString", uri(s))
				testutil.Must(t, err)
				return store
			}, o)
		})
	}
}

// TestStore_ConformanceOnServer runs the suite on a real server, in tables that only this test uses.
func TestStore_ConformanceOnServer(t *testing.T) {
	address := os.Getenv("QUORATE_TEST_SQLSERVER")
	if address == "" {
		t.Skip("QUORATE_TEST_SQLSERVER is not set to a connection string")
	}
	for _, version := range []sqlserver.Version{sqlserver.V1, sqlserver.V2} {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			table := fmt.Sprint("conformance_v", version)
			settings := []string{"connectionString", address, "databaseName", "conformance", "schemaName", "quorate",
				"tableName", table}
			ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
			defer cancel()
			first, err := open(ctx, t, sqlserver.Options{Version: version}, settings...)
			testutil.Must(t, err)
			testutil.Must(t, first.Close())
			// The test cannot advance the clock of the server, so it changes the expiry times of the rows. This
			// changes their ETags. So the suite may use an ETag after an advance only for an expired row.
			db, err := sql.Open("sqlserver", address)
			testutil.Must(t, err)
			t.Cleanup(func() { _ = db.Close() })
			advance := func(d time.Duration) {
				_, err := db.ExecContext(t.Context(), "UPDATE ["+databaseOf(t, db)+"].[quorate].["+table+
					"] SET [ExpireDate] = DATEADD(MILLISECOND, -@D, [ExpireDate]) WHERE [ExpireDate] IS NOT NULL",
					sql.Named("D", d.Milliseconds()))
				testutil.Must(t, err)
			}
			o := statetest.Options{Unstorable: unstorable, BulkLevel: state.Stale, ListLevel: state.Stale,
				LargeValue: 8 << 20, Clock: &statetest.Clock{Now: time.Now, Advance: advance}}
			statetest.Run(t, func(t *testing.T) state.Store {
				store, err := open(t.Context(), t, sqlserver.Options{Version: version}, settings...)
				testutil.Must(t, err)
				return store
			}, o)
		})
	}
}

// databaseOf returns the database that the store uses. That is the database of the connection, or "conformance" if
// the connection is to master.
func databaseOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var name string
	testutil.Must(t, db.QueryRowContext(t.Context(), "SELECT DB_NAME()").Scan(&name))
	if name == "master" {
		return "conformance"
	}
	return name
}
