package cosmosdb_test

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/azure/cosmosdb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is a master key: base64 of a text.
const key = "aHVudGVyMg=="

// checked returns the checked metadata of a component: names and values in turn.
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

// opened opens a store that the test closes.
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

// partitioned is a store whose requests have a partition key, so that all keys of a test are in one partition.
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

func unstorable(key string) bool {
	return strings.ContainsAny(key, "/\\?#\x00\n\t") || strings.HasSuffix(key, " ") || len(key) > 1023
}

func TestStore_ConformanceOnFake(t *testing.T) {
	var mu sync.Mutex
	var now *account
	current := func() *account {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	o := statetest.Options{BulkLevel: state.Stale, NormalisedJSON: true, MaxOperations: 100, Unstorable: unstorable,
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

// TestStore_ConformanceOnServer runs the suite on an account or the emulator, whose time cannot be moved: cases of
// expiry wait.
func TestStore_ConformanceOnServer(t *testing.T) {
	text := os.Getenv("QUORATE_TEST_COSMOSDB")
	if text == "" {
		t.Skip("QUORATE_TEST_COSMOSDB is not set to the connection string of an account")
	}
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
	o := statetest.Options{Level: state.Stale, NormalisedJSON: true, MaxOperations: 100, Unstorable: unstorable,
		LargeValue: 1 << 19, Clock: &statetest.Clock{Now: time.Now,
			Advance: func(d time.Duration) { <-time.After(d) }}}
	statetest.Run(t, func(t *testing.T) state.Store {
		s, err := open(t.Context(), t, cosmosdb.Options{
			Identity: entra.Settings{Transport: rest.Transport(rest.TLS(nil))}}, pairs...)
		testutil.Must(t, err)
		return partitioned{s}
	}, o)
}
