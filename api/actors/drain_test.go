package actors_test

import (
	"testing"
	"time"
)

// A host that stops lets the running turn end before it gives the actor up, so that no other host starts a turn of it
// meanwhile.
func TestClose_AfterTheRunningTurn(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		closed := make(chan error, 1)
		go func() { closed <- w.runtime.Close(t.Context()) }()
		in(time.Second)
		w.mu.Lock()
		owned, deleted := len(w.owned), len(w.deleted)
		w.mu.Unlock()
		if owned != 1 || deleted != 0 {
			t.Errorf("%d actors are owned, and %d were deactivated while the turn runs", owned, deleted)
		}
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Errorf("the turn that ran: %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.owned) != 0 || len(w.deleted) != 1 {
			t.Errorf("%d actors are owned, and %q were deactivated after the end", len(w.owned), w.deleted)
		}
	})
}
