package mongodb_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/mongodb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checked returns the checked metadata of a component. pairs are names and values in turn.
func checked(pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "mongodb", mongodb.Fields())
	return values, err
}

func open(ctx context.Context, t *testing.T, o mongodb.Options, pairs ...string) (*mongodb.Store, error) {
	t.Helper()
	var err error
	if o.Metadata, err = checked(pairs...); err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return mongodb.Open(ctx, o)
}

// opened opens a store that is closed at the end of the test. pairs are the names and values of additional settings.
func opened(t *testing.T, s *server, pairs ...string) *mongodb.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	store, err := open(ctx, t, mongodb.Options{}, append([]string{"connectionString", uri(s)}, pairs...)...)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func uri(s *server) string {
	if s.standalone {
		return "mongodb://" + s.Address()
	}
	return "mongodb://" + s.Address() + "/?replicaSet=rs0"
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

func TestStore_ConformanceOnFake(t *testing.T) {
	t.Parallel()
	c := &clock{}
	o := statetest.Options{BulkLevel: state.Stale, ListLevel: state.Stale, Clock: &statetest.Clock{
		Now: func() time.Time { return c.current().Now() }, Advance: func(d time.Duration) { c.current().leap(d) }}}
	statetest.Run(t, func(t *testing.T) state.Store {
		s := start(t)
		c.use(s)
		store, err := open(t.Context(), t, mongodb.Options{}, "connectionString", uri(s), "operationTimeout", "60s")
		testutil.Must(t, err)
		return store
	}, o)
}

// TestStore_ConformanceOnServer runs the suite on a real replica set.
func TestStore_ConformanceOnServer(t *testing.T) {
	address := os.Getenv("QUORATE_TEST_MONGODB")
	if address == "" {
		t.Skip("QUORATE_TEST_MONGODB is not set to the connection string of a replica set")
	}
	const database, collection = "quorate", "conformance"
	client, err := mongo.Connect(options.Client().ApplyURI(address))
	testutil.Must(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	// The test cannot advance the clock of the server, so it changes the expiry times of the documents.
	advance := func(d time.Duration) {
		_, err := client.Database(database).Collection(collection).UpdateMany(t.Context(),
			bson.D{{Key: "_ttl", Value: bson.D{{Key: "$type", Value: "date"}}}},
			mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "_ttl", Value: bson.D{
				{Key: "$subtract", Value: bson.A{"$_ttl", d.Milliseconds()}}}}}}}})
		testutil.Must(t, err)
	}
	o := statetest.Options{BulkLevel: state.Stale, ListLevel: state.Stale, LargeValue: 8 << 20,
		Clock: &statetest.Clock{Now: time.Now, Advance: advance}}
	statetest.Run(t, func(t *testing.T) state.Store {
		store, err := open(t.Context(), t, mongodb.Options{}, "connectionString", address, "operationTimeout", "60s",
			"databaseName", database, "collectionName", collection)
		testutil.Must(t, err)
		return store
	}, o)
}
