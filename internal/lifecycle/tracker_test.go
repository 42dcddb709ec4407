package lifecycle_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/internal/lifecycle"
)

func TestTracker_CloseWaitsAndRefusesLaterCalls(t *testing.T) {
	var tr lifecycle.Tracker
	release := make(chan struct{})
	var ended atomic.Bool
	if !tr.Go(func() {
		<-release
		ended.Store(true)
	}) {
		t.Fatal("an open tracker refused a goroutine")
	}
	closed := make(chan struct{})
	go func() {
		tr.Close()
		if !ended.Load() {
			t.Error("Close did not wait")
		}
		close(closed)
	}()
	close(release)
	<-closed
	if tr.Enter() || tr.Go(func() { t.Error("it ran after Close") }) {
		t.Error("a closed tracker let a call begin")
	}
	tr.Close()
}

// TestTracker_CallsMayBeginWhileItCloses lets calls begin and end beside Close. The race detector reports a WaitGroup
// that is used wrongly.
func TestTracker_CallsMayBeginWhileItCloses(t *testing.T) {
	for range 100 {
		var tr lifecycle.Tracker
		var wg sync.WaitGroup
		var in atomic.Int64
		for range 4 {
			wg.Go(func() {
				for tr.Enter() {
					in.Add(1)
					in.Add(-1)
					tr.Leave()
				}
			})
		}
		tr.Close()
		if n := in.Load(); n != 0 {
			t.Fatalf("%d calls run after Close", n)
		}
		wg.Wait()
	}
}
