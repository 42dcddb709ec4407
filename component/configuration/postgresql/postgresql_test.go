package postgresql_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/configurationtest"
	"github.com/quorate/quorate/component/configuration/postgresql"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if server.home != "" {
			stop(server.process)
			_ = os.RemoveAll(server.home)
		}
		os.Exit(code)
	}))
}

// server is the PostgreSQL server of all tests. Each test has a table and a channel of its own.
var server struct {
	once       sync.Once
	home, port string
	process    *exec.Cmd
	tables     int
	skip       string
}

// command makes a command for a program of PostgreSQL, which does not run as root.
func command(program string, args ...string) *exec.Cmd {
	dir := os.Getenv("QUORATE_POSTGRES")
	if dir == "" {
		if path, err := exec.LookPath("initdb"); err == nil {
			dir = filepath.Dir(path)
		} else if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
			dir = filepath.Dir(found[len(found)-1])
		} else {
			server.skip = "PostgreSQL is not installed (Debian: postgresql), and QUORATE_POSTGRES is not set to the " +
				"folder of initdb"
		}
	}
	c := exec.Command(filepath.Join(dir, program), args...)
	c.Dir = "/"
	if uid, gid, other := owner(); other {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	return c
}

// owner returns the user who runs PostgreSQL. other is true if that is not the user of the test.
func owner() (uid, gid uint32, other bool) {
	if os.Getuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "daemon"} {
		if u, err := user.Lookup(name); err == nil {
			n, _ := strconv.ParseUint(u.Uid, 10, 32)
			m, _ := strconv.ParseUint(u.Gid, 10, 32)
			return uint32(n), uint32(m), true
		}
	}
	server.skip = "the test runs as root, PostgreSQL does not, and there is no user postgres or daemon"
	return 0, 0, false
}

func start(t *testing.T) {
	t.Helper()
	server.once.Do(func() {
		initdb := command("initdb")
		if server.skip != "" {
			return
		}
		home, err := os.MkdirTemp("", "quorate-postgres")
		testutil.Must(t, err)
		if uid, gid, other := owner(); other {
			testutil.Must(t, os.Chown(home, int(uid), int(gid)))
		}
		server.home, server.port = home, statetest.FreePort(t)
		initdb.Args = append(initdb.Args, "-D", filepath.Join(home, "data"), "-U", "postgres", "-A", "trust", "-N",
			"-E", "UTF8", "--locale", "C.UTF-8")
		if out, err := initdb.CombinedOutput(); err != nil {
			t.Fatalf("initdb: %v\n%s", err, out)
		}
		run(t)
	})
	if server.skip != "" {
		t.Skip(server.skip)
	}
}

func run(t *testing.T) {
	t.Helper()
	server.process = command("postgres", "-D", filepath.Join(server.home, "data"), "-p", server.port, "-c",
		"listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	testutil.Must(t, server.process.Start())
	testutil.Eventually(t, func() error { return try("SELECT 1") })
}

// stop ends the server at once, as pg_ctl stop -m immediate does.
func stop(p *exec.Cmd) {
	_ = p.Process.Signal(syscall.SIGQUIT)
	_ = p.Wait()
}

func url() string {
	return "postgres://postgres@127.0.0.1:" + server.port + "/postgres?sslmode=disable"
}

func try(sql string, args ...any) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url())
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, sql, args...)
	return err
}

// subject is a table with a trigger, as docs/components/configuration.postgresql.md shows it.
type subject struct{ table string }

func newSubject(t *testing.T, key string) subject {
	t.Helper()
	start(t)
	server.tables++
	s := subject{fmt.Sprint("items", server.tables)}
	testutil.Must(t, try("CREATE TABLE "+s.table+
		" (key varchar NOT NULL "+key+", value varchar NOT NULL, version varchar NOT NULL, metadata jsonb)"))
	testutil.Must(t, try(strings.ReplaceAll(`CREATE FUNCTION TBL_changed() RETURNS trigger AS $$
BEGIN
  PERFORM pg_notify('TBL_channel', json_build_object('table', TG_TABLE_NAME, 'action', TG_OP, 'data',
    CASE WHEN TG_OP = 'DELETE' THEN row_to_json(OLD) ELSE row_to_json(NEW) END)::text);
  RETURN NULL;
END; $$ LANGUAGE plpgsql;
CREATE TRIGGER TBL_trigger AFTER INSERT OR UPDATE OR DELETE ON TBL FOR EACH ROW EXECUTE FUNCTION TBL_changed()`,
		"TBL", s.table)))
	return s
}

// Set implements configurationtest.Subject.
func (s subject) Set(t *testing.T, items ...configuration.Item) {
	t.Helper()
	for _, i := range items {
		testutil.Must(t, try("INSERT INTO "+s.table+" VALUES ($1, $2, '1', $3) ON CONFLICT (key) DO UPDATE SET "+
			"value = excluded.value, metadata = excluded.metadata, version = ("+s.table+".version::int + 1)::text",
			i.Key, i.Value, i.Metadata))
	}
}

// Delete implements configurationtest.Subject.
func (s subject) Delete(t *testing.T, keys ...string) {
	t.Helper()
	testutil.Must(t, try("DELETE FROM "+s.table+" WHERE key = ANY($1)", keys))
}

func values(t *testing.T, pairs ...string) component.Values {
	t.Helper()
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	out, _, err := m.Check(component.Pos{}, "settings", postgresql.Fields())
	testutil.Must(t, err)
	return out
}

func attempt(t *testing.T, poll time.Duration, pairs ...string) (*postgresql.Store, error) {
	t.Helper()
	s, err := postgresql.Open(t.Context(), postgresql.Options{Logger: slog.New(slog.DiscardHandler), Poll: poll,
		Metadata: values(t, append(pairs, "connectionString", url())...)})
	if err == nil {
		t.Cleanup(func() { testutil.Must(t, s.Close()) })
	}
	return s, err
}

func open(t *testing.T, pairs ...string) *postgresql.Store {
	t.Helper()
	s, err := attempt(t, 0, pairs...)
	testutil.Must(t, err)
	return s
}

func traits() configurationtest.Traits {
	return configurationtest.Traits{Metadata: true, EmptyValues: true}
}

func TestStore_PassesSuite(t *testing.T) {
	configurationtest.Run(t, traits(), func(t *testing.T) (configuration.Store, configurationtest.Subject) {
		s := newSubject(t, "PRIMARY KEY")
		return open(t, "table", s.table, "notifyChannel", s.table+"_channel"), s
	})
}

func TestStore_PassesSuiteWithoutChannel(t *testing.T) {
	configurationtest.Run(t, traits(), func(t *testing.T) (configuration.Store, configurationtest.Subject) {
		s := newSubject(t, "PRIMARY KEY")
		store, err := attempt(t, 50*time.Millisecond, "table", s.table)
		testutil.Must(t, err)
		return store, s
	})
}

func TestStore_HighestVersionCounts(t *testing.T) {
	s := newSubject(t, "")
	for _, version := range []string{"9", "10", "2", "draft"} {
		testutil.Must(t, try("INSERT INTO "+s.table+" VALUES ('a', 'value of ' || $1::text, $1, '{\"n\": 1}')",
			version))
	}
	store := open(t, "table", s.table)
	for _, keys := range [][]string{nil, {"a"}} {
		found, err := store.Get(t.Context(), configuration.GetRequest{Keys: keys})
		testutil.Must(t, err)
		if len(found.Items) != 1 || found.Items[0].Value != "value of 10" || found.Items[0].Metadata["n"] != "1" {
			t.Errorf("%v: %+v", keys, found.Items)
		}
	}
}

// TestStore_ChannelOfRequest subscribes as applications of Dapr do.
func TestStore_ChannelOfRequest(t *testing.T) {
	s := newSubject(t, "PRIMARY KEY")
	store := open(t, "table", s.table)
	sub, err := store.Subscribe(t.Context(), configuration.SubscribeRequest{Keys: []string{"a"},
		Metadata: map[string]string{"pgNotifyChannel": s.table + "_channel"}})
	testutil.Must(t, err)
	defer sub.Close()
	s.Set(t, configuration.Item{Key: "a", Value: "1"})
	// A channel that is not listened to would be noticed after a minute.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if items, err := sub.Next(ctx); err != nil || len(items) != 1 || items[0].Value != "1" {
		t.Errorf("%v, %v", items, err)
	}
	_, err = store.Subscribe(t.Context(), configuration.SubscribeRequest{
		Metadata: map[string]string{"pgNotifyChannel": "a; DROP TABLE items"}})
	statetest.WantFault(t, err, fault.Invalid, "pgNotifyChannel")
}

// TestStore_NewestValueIsDeliveredAfterRestart changes items while no subscriber is connected.
func TestStore_NewestValueIsDeliveredAfterRestart(t *testing.T) {
	s := newSubject(t, "PRIMARY KEY")
	store := open(t, "table", s.table, "notifyChannel", s.table+"_channel")
	s.Set(t, configuration.Item{Key: "a", Value: "1"}, configuration.Item{Key: "b", Value: "1"})
	seen := configurationtest.Listen(t, store, "a", "b")
	stop(server.process)
	run(t)
	s.Set(t, configuration.Item{Key: "a", Value: "2"})
	s.Delete(t, "b")
	seen.Value(t, "a", "2")
	seen.Until(t, "b deleted", func() bool { return seen.Deleted["b"] })
	s.Set(t, configuration.Item{Key: "b", Value: "3"})
	seen.Value(t, "b", "3")
}

// TestStore_OtherPayload uses a trigger that does not report the row.
func TestStore_OtherPayload(t *testing.T) {
	s := newSubject(t, "PRIMARY KEY")
	store := open(t, "table", s.table, "notifyChannel", "other_channel")
	seen := configurationtest.Listen(t, store)
	s.Set(t, configuration.Item{Key: "a", Value: strings.Repeat("v", 5000)})
	testutil.Must(t, try("NOTIFY other_channel, 'something has changed'"))
	seen.Value(t, "a", strings.Repeat("v", 5000))
}

func TestOpen_WrongTable(t *testing.T) {
	start(t)
	_, err := attempt(t, 0, "table", "absent")
	statetest.WantFault(t, err, fault.Invalid, "absent does not exist", "docs/components/configuration.postgresql.md")
	testutil.Must(t, try("CREATE TABLE narrow (key text, value text)"))
	t.Cleanup(func() { testutil.Must(t, try("DROP TABLE narrow")) })
	_, err = attempt(t, 0, "table", "narrow")
	statetest.WantFault(t, err, fault.Invalid, "narrow", "other columns")
}
