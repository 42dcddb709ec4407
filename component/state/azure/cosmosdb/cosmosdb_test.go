package cosmosdb_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/azure/cosmosdb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is a master key: base64 of a text.
const key = "aHVudGVyMg=="

// checked returns the checked metadata of a component. pairs are names and values in turn.
func checked(pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "cosmosdb", cosmosdb.Fields())
	return values, err
}

func open(ctx context.Context, t *testing.T, o cosmosdb.Options, pairs ...string) (*cosmosdb.Store, error) {
	t.Helper()
	var err error
	pairs = append(pairs, "database", "orders")
	if !slices.Contains(pairs, "collection") {
		pairs = append(pairs, "collection", "state")
	}
	if o.Metadata, err = checked(pairs...); err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return cosmosdb.Open(ctx, o)
}

// opened opens a store, which is closed at the end of the test.
func opened(t *testing.T, a *account) *cosmosdb.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	o := cosmosdb.Options{Identity: entra.Settings{Transport: transport(a)}, Now: a.Now}
	s, err := open(ctx, t, o, "url", a.URL, "masterKey", key)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func transport(a *account) *http.Transport {
	return a.Client().Transport.(*http.Transport).Clone()
}

// partitioned is a store that adds a partition key to each request. So all keys of one test are in one partition.
type partitioned struct{ *cosmosdb.Store }

func metadata(key string) map[string]string {
	app, _, _ := strings.Cut(key, state.Separator)
	return map[string]string{"partitionKey": app}
}

func (p partitioned) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	r.Metadata = metadata(r.Key)
	return p.Store.Get(ctx, r)
}

func (p partitioned) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	for i := range r.Items {
		r.Items[i].Metadata = metadata(r.Items[i].Key)
	}
	return p.Store.Set(ctx, r)
}

func (p partitioned) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	r.Metadata = metadata(r.Key)
	return p.Store.Delete(ctx, r)
}

func (p partitioned) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	if len(r.Operations) > 0 {
		r.Metadata = metadata(r.Operations[0].Key)
	}
	return p.Store.Transact(ctx, r)
}

func (p partitioned) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	if len(r.Keys) > 0 {
		r.Metadata = metadata(r.Keys[0])
	}
	return p.Store.BulkGet(ctx, r)
}

func (p partitioned) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	r.Metadata = metadata(r.Prefix)
	return p.Store.List(ctx, r)
}

func unstorable(key string) bool {
	return strings.ContainsAny(key, "/\\?#\x00\n\t") || strings.HasSuffix(key, " ") || len(key) > 1023
}

func TestStore_ConformanceOnFake(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var now *account
	current := func() *account {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	o := statetest.Options{BulkLevel: state.Stale, ListLevel: state.Stale, NormalisedJSON: true, MaxOperations: 100,
		Unstorable: unstorable,
		Clock: &statetest.Clock{Now: func() time.Time { return current().Now() },
			Advance: func(d time.Duration) { current().leap(d) }}}
	statetest.Run(t, func(t *testing.T) state.Store {
		a := start(t)
		mu.Lock()
		now = a
		mu.Unlock()
		o := cosmosdb.Options{Identity: entra.Settings{Transport: transport(a)}, Now: a.Now}
		s, err := open(t.Context(), t, o, "url", a.URL, "masterKey", key)
		testutil.Must(t, err)
		return partitioned{s}
	}, o)
}

// createContainer creates the database and the container of the tests on a server if they do not exist.
func createContainer(t *testing.T, connection string) {
	t.Helper()
	c, err := azcosmos.NewClientFromConnectionString(connection, nil)
	testutil.Must(t, err)
	existed := func(err error) bool {
		var e *azcore.ResponseError
		return errors.As(err, &e) && e.StatusCode == http.StatusConflict
	}
	if _, err := c.CreateDatabase(t.Context(), azcosmos.DatabaseProperties{ID: "orders"}, nil); !existed(err) {
		testutil.Must(t, err)
	}
	db, err := c.NewDatabase("orders")
	testutil.Must(t, err)
	noDefault := int32(-1)
	if _, err := db.CreateContainer(t.Context(), azcosmos.ContainerProperties{ID: "state",
		DefaultTimeToLive:      &noDefault,
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/partitionKey"}},
	}, nil); !existed(err) {
		testutil.Must(t, err)
	}
}

// TestStore_ConformanceOnServer runs the suite on a real account or the emulator. The test cannot change their clock,
// so test cases of expiry wait.
func TestStore_ConformanceOnServer(t *testing.T) {
	text := os.Getenv("QUORATE_TEST_COSMOSDB")
	if text == "" {
		t.Skip("QUORATE_TEST_COSMOSDB is not set to the connection string of an account")
	}
	createContainer(t, text)
	var pairs []string
	for part := range strings.SplitSeq(strings.Trim(text, ";"), ";") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "AccountEndpoint":
			pairs = append(pairs, "url", value)
		case "AccountKey":
			pairs = append(pairs, "masterKey", value)
		}
	}
	o := statetest.Options{Level: state.Stale, ListLevel: state.Stale, NormalisedJSON: true, MaxOperations: 100,
		Unstorable: unstorable,
		LargeValue: 1 << 19, Clock: &statetest.Clock{Now: time.Now,
			Advance: func(d time.Duration) { <-time.After(d) }}}
	statetest.Run(t, func(t *testing.T) state.Store {
		s, err := open(t.Context(), t, cosmosdb.Options{
			Identity: entra.Settings{Transport: rest.Transport(rest.TLS(nil))}}, pairs...)
		testutil.Must(t, err)
		return partitioned{s}
	}, o)
}

// TestStore_UndecodableItemFailsAlone reads items that other programs have written, alone and with another item.
func TestStore_UndecodableItemFailsAlone(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	testutil.Must(t, statetest.Set(t.Context(), s, statetest.Put("a||good", "1")))
	a.put(map[string]any{"id": "a||bad", "partitionKey": "a||bad", "value": 1, "isBinary": "yes", "_etag": `"1"`,
		"_ts": int64(1)})
	a.put(map[string]any{"id": "a||elsewhere", "partitionKey": 7, "value": 1, "_etag": `"1"`, "_ts": int64(1)})
	_, err := statetest.Get(t.Context(), s, "a||bad")
	statetest.WantFault(t, err, fault.Corrupt, "not one of a state store")
	items, err := s.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||bad", "a||elsewhere", "a||good"}})
	testutil.Must(t, err)
	statetest.WantFault(t, items[0].Err, fault.Corrupt, "not one of a state store")
	if items[1].Found() || items[1].Err != nil || items[2].Err != nil || string(items[2].Value) != "1" {
		t.Errorf("the other items are %+v", items[1:])
	}
	page, err := s.List(t.Context(), state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 2 || page.Items[0].Key != "a||bad" || page.Items[1].Key != "a||good" {
		t.Errorf("List = %+v, %v", page, err)
	}
}

// An item that was saved with a partition key is listed only with the same partition key.
func TestStore_ListsItemsOfTheirPartitions(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	own := state.Write{Key: "shop||own", Value: []byte("1"), Metadata: map[string]string{"partitionKey": "p"}}
	testutil.Must(t, statetest.Set(t.Context(), s, statetest.Put("shop||b", "1"), statetest.Put("shop||a", "1"),
		statetest.Put("shop||cart||7||k", "1"), statetest.Put("other||a", "1")))
	testutil.Must(t, statetest.Set(t.Context(), s, own))
	for want, metadata := range map[string]map[string]string{
		"shop||a shop||b shop||cart||7||k": nil, "shop||own": {"partitionKey": "p"},
	} {
		page, err := s.List(t.Context(), state.ListRequest{Prefix: "shop||",
			ReadOptions: state.ReadOptions{Metadata: metadata}})
		testutil.Must(t, err)
		var got []string
		for _, item := range page.Items {
			got = append(got, item.Key)
		}
		if strings.Join(got, " ") != want || page.More || page.Items[0].ETag == "" || page.Items[0].Value != nil {
			t.Errorf("with %v: %+v, want %s", metadata, page, want)
		}
	}
}
