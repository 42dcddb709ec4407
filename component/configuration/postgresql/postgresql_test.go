package postgresql_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/configurationtest"
	"github.com/quorate/quorate/component/configuration/postgresql"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// databases are the servers of the tests.
var databases postgrestest.Servers

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		databases.Close()
		os.Exit(code)
	}))
}

// subject is a table with a trigger, as docs/components/configuration.postgresql.md shows it.
type subject struct {
	server *postgrestest.Server
	table  string
}

// tables is the number of tables in all servers. It makes the names of tables unique.
var tables int

func newSubject(srv *postgrestest.Server, key string) subject {
	srv.T.Helper()
	tables++
	s := subject{srv, fmt.Sprint("items", tables)}
	srv.Do("CREATE TABLE " + s.table +
		" (key varchar NOT NULL " + key + ", value varchar NOT NULL, version varchar NOT NULL, metadata jsonb)")
	for _, sql := range []string{`CREATE FUNCTION TBL_changed() RETURNS trigger AS $$
BEGIN
  PERFORM pg_notify('TBL_channel', json_build_object('table', TG_TABLE_NAME, 'action', TG_OP, 'data',
    CASE WHEN TG_OP = 'DELETE' THEN row_to_json(OLD) ELSE row_to_json(NEW) END)::text);
  RETURN NULL;
END; $$ LANGUAGE plpgsql`,
		"CREATE TRIGGER TBL_trigger AFTER INSERT OR UPDATE OR DELETE ON TBL " +
			"FOR EACH ROW EXECUTE FUNCTION TBL_changed()"} {
		srv.Do(strings.ReplaceAll(sql, "TBL", s.table))
	}
	return s
}

// Set implements configurationtest.Subject.
func (s subject) Set(t *testing.T, items ...configuration.Item) {
	t.Helper()
	for _, i := range items {
		s.server.Do("INSERT INTO "+s.table+" VALUES ($1, $2, '1', $3) ON CONFLICT (key) DO UPDATE SET "+
			"value = excluded.value, metadata = excluded.metadata, version = ("+s.table+".version::int + 1)::text",
			i.Key, i.Value, i.Metadata)
	}
}

// Delete implements configurationtest.Subject.
func (s subject) Delete(t *testing.T, keys ...string) {
	t.Helper()
	s.server.Do("DELETE FROM "+s.table+" WHERE key = ANY($1)", keys)
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

func attempt(t *testing.T, srv *postgrestest.Server, poll time.Duration, pairs ...string) (*postgresql.Store, error) {
	t.Helper()
	s, err := postgresql.Open(t.Context(), postgresql.Options{Logger: slog.New(slog.DiscardHandler), Poll: poll,
		Metadata: values(t, append(pairs, "connectionString", srv.URL())...)})
	if err == nil {
		t.Cleanup(func() { testutil.Must(t, s.Close()) })
	}
	return s, err
}

func open(t *testing.T, srv *postgrestest.Server, pairs ...string) *postgresql.Store {
	t.Helper()
	s, err := attempt(t, srv, 0, pairs...)
	testutil.Must(t, err)
	return s
}

func traits() configurationtest.Traits {
	return configurationtest.Traits{Metadata: true, EmptyValues: true}
}

func TestStore_PassesSuite(t *testing.T) {
	srv := databases.Start(t)
	configurationtest.Run(t, traits(), func(t *testing.T) (configuration.Store, configurationtest.Subject) {
		s := newSubject(srv, "PRIMARY KEY")
		return open(t, srv, "table", s.table, "notifyChannel", s.table+"_channel"), s
	})
}

func TestStore_PassesSuiteWithoutChannel(t *testing.T) {
	srv := databases.Start(t)
	configurationtest.Run(t, traits(), func(t *testing.T) (configuration.Store, configurationtest.Subject) {
		s := newSubject(srv, "PRIMARY KEY")
		store, err := attempt(t, srv, 50*time.Millisecond, "table", s.table)
		testutil.Must(t, err)
		return store, s
	})
}

func TestStore_HighestVersionCounts(t *testing.T) {
	srv := databases.Start(t)
	s := newSubject(srv, "")
	for _, version := range []string{"9", "10", "2", "draft"} {
		srv.Do("INSERT INTO "+s.table+" VALUES ('a', 'value of ' || $1::text, $1, '{\"n\": 1}')",
			version)
	}
	store := open(t, srv, "table", s.table)
	for _, keys := range [][]string{nil, {"a"}} {
		found, err := store.Get(t.Context(), configuration.GetRequest{Keys: keys})
		testutil.Must(t, err)
		if len(found.Items) != 1 || found.Items[0].Value != "value of 10" || found.Items[0].Metadata["n"] != "1" {
			t.Errorf("%v: %+v", keys, found.Items)
		}
	}
}

// An item whose metadata are no object must not keep the others from their subscribers.
func TestStore_UnreadableMetadata(t *testing.T) {
	srv := databases.Start(t)
	s := newSubject(srv, "PRIMARY KEY")
	store := open(t, srv, "table", s.table, "notifyChannel", s.table+"_channel")
	seen := configurationtest.Listen(t, store)
	srv.Do("INSERT INTO " + s.table + " VALUES ('bad', 'b', '1', '[]'), ('good', 'g', '1', '{}')")
	seen.Value(t, "bad", "b")
	seen.Value(t, "good", "g")
	found, err := store.Get(t.Context(), configuration.GetRequest{})
	testutil.Must(t, err)
	if len(found.Items) != 2 || found.Items[0].Value != "b" || found.Items[0].Metadata != nil {
		t.Errorf("%+v", found.Items)
	}
}

// TestStore_ChannelOfRequest names the channel in the metadata of the subscription, as applications of Dapr do.
func TestStore_ChannelOfRequest(t *testing.T) {
	srv := databases.Start(t)
	s := newSubject(srv, "PRIMARY KEY")
	store := open(t, srv, "table", s.table)
	sub, err := store.Subscribe(t.Context(), configuration.SubscribeRequest{Keys: []string{"a"},
		Metadata: map[string]string{"pgNotifyChannel": s.table + "_channel"}})
	testutil.Must(t, err)
	defer sub.Close()
	s.Set(t, configuration.Item{Key: "a", Value: "1"})
	// If the store did not listen to the channel, it would read the change only after a minute.
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
	srv := databases.Start(t)
	s := newSubject(srv, "PRIMARY KEY")
	store := open(t, srv, "table", s.table, "notifyChannel", s.table+"_channel")
	s.Set(t, configuration.Item{Key: "a", Value: "1"}, configuration.Item{Key: "b", Value: "1"})
	seen := configurationtest.Listen(t, store, "a", "b")
	srv.Kill()
	srv.Run()
	srv.Wait()
	s.Set(t, configuration.Item{Key: "a", Value: "2"})
	s.Delete(t, "b")
	seen.Value(t, "a", "2")
	seen.Until(t, "b deleted", func() bool { return seen.Deleted["b"] })
	s.Set(t, configuration.Item{Key: "b", Value: "3"})
	seen.Value(t, "b", "3")
}

// TestStore_OtherPayload uses a trigger that does not report the row.
func TestStore_OtherPayload(t *testing.T) {
	srv := databases.Start(t)
	s := newSubject(srv, "PRIMARY KEY")
	store := open(t, srv, "table", s.table, "notifyChannel", "other_channel")
	seen := configurationtest.Listen(t, store)
	s.Set(t, configuration.Item{Key: "a", Value: strings.Repeat("v", 5000)})
	srv.Do("NOTIFY other_channel, 'something has changed'")
	seen.Value(t, "a", strings.Repeat("v", 5000))
}

func TestOpen_WrongTable(t *testing.T) {
	srv := databases.Start(t)
	_, err := attempt(t, srv, 0, "table", "absent")
	statetest.WantFault(t, err, fault.Invalid, "absent does not exist", "docs/components/configuration.postgresql.md")
	srv.Do("CREATE TABLE narrow (key text, value text)")
	_, err = attempt(t, srv, 0, "table", "narrow")
	statetest.WantFault(t, err, fault.Invalid, "narrow", "other columns")
}
