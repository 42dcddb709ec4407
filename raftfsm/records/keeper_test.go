package records_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/raftfsm/records"
)

// An update sees every change that was made before its request, even if an earlier update is running at that time.
// Updates do not overlap.
func TestUpdates_EachChangeIsSeenByOneUpdate(t *testing.T) {
	const changes = 1000
	var u records.Updates
	var running, requests sync.WaitGroup
	var changed, seen, underWay atomic.Int64
	u.Start(running.Go, func() {
		if n := underWay.Add(1); n != 1 {
			t.Errorf("%d updates at the same time", n)
		}
		seen.Store(changed.Load())
		underWay.Add(-1)
	})
	for range changes {
		requests.Go(func() {
			changed.Add(1)
			u.Request()
		})
	}
	requests.Wait()
	running.Wait()
	if n := seen.Load(); n != changes || !u.Idle() {
		t.Errorf("the last update has seen %d of %d changes; idle = %t", n, changes, u.Idle())
	}
}

// Requests before Start and after Stop have no effect, also while a lock is held that the update needs.
func TestUpdates_OnlyBetweenStartAndStop(t *testing.T) {
	var u records.Updates
	var running sync.WaitGroup
	var mu sync.Mutex
	updates := 0
	u.Request()
	mu.Lock()
	u.Start(running.Go, func() {
		mu.Lock()
		defer mu.Unlock()
		updates++
	})
	u.Request()
	mu.Unlock()
	running.Wait()
	if updates < 1 || updates > 2 {
		t.Errorf("%d updates after two requests", updates)
	}
	u.Stop()
	before := updates
	u.Request()
	running.Wait()
	if updates != before {
		t.Error("an update began after Stop")
	}
}
