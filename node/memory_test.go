package node

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/admission"
)

func TestMemory_IsFreedOnceAfterBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory{requests: admission.New(admission.Options{Bytes: 4 << 20})}
		var freed atomic.Int64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			m.giveBack(stop, func() { freed.Add(1) })
		}()
		burst := func() {
			if !m.requests.TryAcquire(3 << 20) {
				t.Fatal("no room")
			}
			m.requests.Release(3 << 20)
		}
		after := func(d time.Duration) int64 {
			<-time.After(d)
			synctest.Wait()
			return freed.Load()
		}
		if n := after(5 * lookForBurst); n != 0 {
			t.Errorf("freed %d times without a burst", n)
		}
		for range 5 { // the burst continues
			burst()
			if n := after(lookForBurst); n != 0 {
				t.Errorf("freed %d times during a burst", n)
			}
		}
		if n := after(5 * lookForBurst); n != 1 {
			t.Errorf("freed %d times after a burst", n)
		}
		burst()
		if n := after(lookForBurst); n != 1 {
			t.Errorf("freed %d times during the second burst", n)
		}
		if n := after(5 * lookForBurst); n != 2 {
			t.Errorf("freed %d times after two bursts", n)
		}
		close(stop)
		<-done
	})
}
