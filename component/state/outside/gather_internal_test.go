package outside

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/component/state"
)

// failing is a fake database. Reads of several keys fail. Each other read waits until the test lets it continue.
type failing struct{ goOn chan struct{} }

func (f failing) ReadOne(_ context.Context, key string) (state.Item, error) {
	<-f.goOn
	return state.Item{Key: key}, nil
}

func (failing) ReadMany(context.Context, []string) ([]state.Item, error) {
	return nil, errors.New("refused")
}

func newWanted() *wanted { return &wanted{key: "key", ready: make(chan struct{})} }

// Wait must not return between the end of a failed read of several keys and the reads of single keys after it. A
// caller can also give up at any moment.
func TestGatherer_WaitCountsTheReadsAfterAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGatherer(failing{})
		a, b, c := newWanted(), newWanted(), newWanted()
		g.leave(c) // during the read
		g.waiting, g.running = []*wanted{a, b, c}, 1
		g.run() // the callers have not continued yet
		waited := false
		go func() {
			g.Wait()
			waited = true
		}()
		synctest.Wait()
		if waited {
			t.Error("Wait returned before the reads of single keys")
		}
		g.leave(a) // after the read
		synctest.Wait()
		if waited {
			t.Error("Wait returned before the last read")
		}
		g.endRepeat()
		synctest.Wait()
		if !waited {
			t.Fatalf("Wait did not return: %d repeated reads", g.repeats)
		}
	})
}

// After a failed read of several keys, the reads of single keys hang. Other keys are read all the same.
func TestGatherer_RepeatedReadsDelayNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := failing{make(chan struct{})}
		g := NewGatherer(f)
		for range maxReads + 3 {
			go func() { _, _ = g.Get(t.Context(), "key") }()
		}
		synctest.Wait()
		for range maxReads {
			f.goOn <- struct{}{}
		}
		synctest.Wait() // three repeated reads hang
		if g.repeats != 3 || g.running != 0 {
			t.Errorf("%d repeated and %d other reads", g.repeats, g.running)
		}
		go func() { _, _ = g.Get(t.Context(), "other") }()
		synctest.Wait()
		if g.running != 1 || len(g.waiting) != 0 {
			t.Errorf("another key waits: %d reads are in progress", g.running)
		}
		close(f.goOn)
		g.Wait()
	})
}
