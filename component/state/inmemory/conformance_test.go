package inmemory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheStoreKeepsTheContract(t *testing.T) {
	now := newClock()
	statetest.Run(t, func(*testing.T) state.Store {
		return inmemory.Open(inmemory.Options{Now: now.Now, SweepEvery: time.Millisecond})
	}, statetest.Options{
		Clock: &statetest.Clock{Now: now.Now, Advance: now.Advance}, RequestIDs: true, LargeValue: 8 << 20,
	})
}
