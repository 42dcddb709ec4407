package redis_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// metadata returns the checked metadata of a component. pairs are names and values in turn.
func metadata(t *testing.T, pairs ...string) component.Values {
	t.Helper()
	values, err := checked(pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func checked(pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "redis", redis.Fields())
	return values, err
}

func open(t *testing.T, o redis.Options) (*redis.Store, error) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return redis.Open(ctx, o)
}

// opened opens a store, which is closed at the end of the test.
func opened(t *testing.T, pairs ...string) *redis.Store {
	t.Helper()
	s, err := open(t, redis.Options{Metadata: metadata(t, pairs...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// clock is the clock of a store. It follows the real time, and the test can advance it.
type clock struct {
	servers []*redistest.Server
	mu      sync.Mutex
	leaps   time.Duration
}

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.leaps)
}

// leap returns a function that advances the clock. The function shortens the expiry times in the servers by the same
// duration.
func (c *clock) leap(t *testing.T) func(time.Duration) {
	return func(d time.Duration) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leaps += d
		for _, s := range c.servers {
			if err := age(context.WithoutCancel(t.Context()), s, d); err != nil {
				t.Error(err)
			}
		}
	}
}

// conform runs the suite on a store with the settings in pairs.
func conform(t *testing.T, servers []*redistest.Server, o statetest.Options, pairs ...string) {
	t.Helper()
	c := &clock{servers: servers}
	o.Clock = &statetest.Clock{Now: c.Now, Advance: c.leap(t)}
	o.LargeValue = 8 << 20
	statetest.Run(t, func(t *testing.T) state.Store {
		s, err := open(t, redis.Options{Metadata: metadata(t, pairs...), Now: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, o)
}

func TestStore_Conformance(t *testing.T) {
	s := redistest.Start(t)
	conform(t, []*redistest.Server{s}, statetest.Options{ListLevel: state.Stale}, "redisHost", s.Address)
}

func TestStore_ConformanceInCluster(t *testing.T) {
	all := redistest.StartCluster(t)
	conform(t, all, statetest.Options{Level: state.Stale}, "redisHost", redistest.Addresses(all), "redisType",
		"cluster", "clusterHashTags", "true")
}
