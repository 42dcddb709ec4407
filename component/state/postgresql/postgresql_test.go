package postgresql_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
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

func checked(version postgresql.Version, pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "postgresql", postgresql.Fields(version))
	return values, err
}

func open(ctx context.Context, t *testing.T, o postgresql.Options, pairs ...string) (*postgresql.Store, error) {
	t.Helper()
	var err error
	if o.Metadata, err = checked(o.Version, pairs...); err != nil {
		t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	return postgresql.Open(ctx, o)
}

// opened opens a store, which is closed at the end of the test.
func opened(t *testing.T, version postgresql.Version, pairs ...string) *postgresql.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	s, err := open(ctx, t, postgresql.Options{Version: version}, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// clock is the clock of a store. It follows the real time, and the test can advance it.
type clock struct {
	server  *postgrestest.Server
	expires string // name of the column with the expiry time
	mu      sync.Mutex
	leaps   time.Duration
}

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.leaps)
}

// leap advances the clock by d, and moves the expiry times of all rows back by d.
func (c *clock) leap(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaps += d
	c.server.Do("UPDATE state SET "+c.expires+" = "+c.expires+" - $1::bigint * interval '1 microsecond' WHERE "+
		c.expires+" IS NOT NULL", d.Microseconds())
}

func conform(t *testing.T, version postgresql.Version, expires string, o statetest.Options) {
	t.Helper()
	s := databases.Start(t)
	c := &clock{server: s, expires: expires}
	o.Clock = &statetest.Clock{Now: c.Now, Advance: c.leap}
	o.TextKeys = true
	o.LargeValue = 8 << 20
	statetest.Run(t, func(t *testing.T) state.Store {
		o := postgresql.Options{Version: version, Now: c.Now}
		store, err := open(t.Context(), t, o, "connectionString", s.URL())
		if err != nil {
			t.Fatal(err)
		}
		return store
	}, o)
}

func TestStore_ConformanceV2(t *testing.T) {
	t.Parallel()
	conform(t, postgresql.V2, "expires_at", statetest.Options{})
}

func TestStore_ConformanceV1(t *testing.T) {
	t.Parallel()
	conform(t, postgresql.V1, "expiredate", statetest.Options{NormalisedJSON: true, SharedETags: true})
}
