// Package ferretdb_test runs the conformance suite of state stores with state.mongodb on FerretDB, a server that
// speaks MongoDB's protocol and stores documents in PostgreSQL. FerretDB shares no code with MongoDB and none with
// the protocol fake of package mongodb. It is a module of its own, because FerretDB has many dependencies.
//
// The tests need the programs of PostgreSQL: Debian's package postgresql, or their folder in QUORATE_POSTGRES.
package ferretdb_test

import (
	"context"
	"flag"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/mongodb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/testutil"
)

// beyond returns the cases of the suite that FerretDB 1.24 cannot pass. A key is the reason, and the values are
// regular expressions for names of tests.
func beyond() map[string][]string {
	return map[string][]string{
		"it has no transactions": {"ASetOfSeveralItemsWritesNoneOnAConflict", "ATransaction.*",
			"AnswersSayWhatTheyAreWorth", "ALargeTransactionIsAtomic", "ClosingUnderLoadIsSafe",
			"ConcurrencyMatrix/SetOfSeveral", "ConcurrencyMatrix/Transact.*", "ConcurrentSetsOfSeveralItemsDoNotMix",
			"ConditionsOfASetAreCheckedBeforeIt", "ConditionsOfATransactionAreCheckedBeforeIt",
			"EveryConsistencyLevelIsServed", "FeaturesMatchAbilities"},
		"it has no pipelines in updates, which first-write and a TTL in seconds need": {"ConcurrencyMatrix/Set",
			"OfManyCreatorsExactlyOneWins", "ConcurrentStrongCallsAreLinearizable"},
		"it has no expressions with the time of the server": {"ALaterWriteReplacesTheTTL", "AValueExpires.*",
			"AnExpiredKey.*", "ExpiryIsPartOfATransaction"},
		"it reads a document and then writes it, without a lock": {"NoConditionalUpdateIsLost"},
		"its PostgreSQL stores no NUL characters": {"KeysAreKeptApart", "AListingIsInByteOrder",
			"AListingKeepsToItsPrefix"},
		"it replaces bytes that are not UTF-8": {"ValuesAreKeptByteForByte", "TheContentTypeIsKeptWithTheValue",
			"LargeValuesAreKept", "BulkAnswersComeInRequestOrderWithDuplicates"},
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	var skip []string
	for _, cases := range beyond() {
		for _, name := range cases {
			skip = append(skip, "^TestStore_ConformanceOnFerretDB$/^"+strings.ReplaceAll(name, "/", "$/^")+"$")
		}
	}
	if err := flag.Set("test.skip", strings.Join(skip, "|")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// start starts a FerretDB server that ends with the test. It returns the address of the server.
func start(t *testing.T) string {
	t.Helper()
	f, err := ferretdb.New(&ferretdb.Config{
		Listener:      ferretdb.ListenerConfig{TCP: "127.0.0.1:0"},
		Handler:       "postgresql",
		PostgreSQLURL: startPostgreSQL(t),
		Logger:        slog.New(slog.DiscardHandler),
	})
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testutil.Must(t, <-ended)
	})
	u, err := url.Parse(f.MongoDBURI())
	testutil.Must(t, err)
	return u.Host
}

func TestStore_ConformanceOnFerretDB(t *testing.T) {
	address := relay(t, start(t))
	statetest.Run(t, func(t *testing.T) state.Store {
		m := component.Metadata{{Name: "connectionString", Value: "mongodb://" + address},
			{Name: "operationTimeout", Value: "60s"}}
		values, _, err := m.Check(component.Pos{}, "mongodb", mongodb.Fields())
		testutil.Must(t, err)
		store, err := mongodb.Open(t.Context(), mongodb.Options{Metadata: values,
			Logger: slog.New(slog.DiscardHandler)})
		testutil.Must(t, err)
		return store
	}, statetest.Options{BulkLevel: state.Stale, ListLevel: state.Stale, Clock: &statetest.Clock{Now: time.Now,
		Advance: func(time.Duration) { t.Fatal("no case that runs moves the clock") }}})
}
