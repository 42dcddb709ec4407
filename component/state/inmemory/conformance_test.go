package inmemory_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore_Conformance(t *testing.T) {
	now := newClock()
	statetest.Run(t, func(*testing.T) state.Store {
		return inmemory.Open(inmemory.Options{Now: now.Now, SweepEvery: time.Millisecond})
	}, statetest.Options{
		Clock: &statetest.Clock{Now: now.Now, Advance: now.Advance}, RequestIDs: true, LargeValue: 8 << 20,
	})
}

func TestStore_ConformanceWhenWrapped(t *testing.T) {
	now := newClock()
	metrics, err := state.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	settings := state.Settings{DefaultConsistency: state.Strong, MaxValueSize: 1 << 20}
	statetest.Run(t, func(*testing.T) state.Store {
		s := inmemory.Open(inmemory.Options{Now: now.Now})
		return metrics.Instrument(state.WithSettings(s, settings), "wrapped", state.Strong)
	}, statetest.Options{Clock: &statetest.Clock{Now: now.Now, Advance: now.Advance}, RequestIDs: true, Rounds: 1})
}

func TestStore_ConformanceWhenEncrypted(t *testing.T) {
	now := newClock()
	ring, err := state.NewKeyRing("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", "")
	if err != nil {
		t.Fatal(err)
	}
	statetest.Run(t, func(*testing.T) state.Store {
		return state.Encrypted(inmemory.Open(inmemory.Options{Now: now.Now}), ring)
	}, statetest.Options{Clock: &statetest.Clock{Now: now.Now, Advance: now.Advance}, RequestIDs: true, Rounds: 1})
}
