package actors_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

// Close waits for the running turn before it releases the actor. So no other host starts a turn of the actor at the
// same time.
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

// A turn that outlasts the drain timeout is canceled, so that the application can stop its work.
func TestDrain_CancelsTheTurnAfterTheDrainTimeout(t *testing.T) {
	inWorld(t, `{"entities":["T"],"drainOngoingCallTimeout":"3s"}`, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "obey1", "")
		begun := time.Now()
		w.runtime.Drain(t.Context())
		if got := time.Since(begun); got != 3*time.Second {
			t.Errorf("drained after %v", got)
		}
		if err := <-running; reason(err) != api.ReasonIndeterminate {
			t.Errorf("the canceled call: %v", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.owned) != 0 || len(w.deleted) != 1 {
			t.Errorf("%d actors are owned, deactivated %q", len(w.owned), w.deleted)
		}
	})
}

// Drain does not wait for an application that continues with a canceled turn.
func TestDrain_DoesNotWaitForACanceledTurn(t *testing.T) {
	inWorld(t, `{"entities":["T"],"drainOngoingCallTimeout":"3s"}`, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		begun := time.Now()
		w.runtime.Drain(t.Context())
		if got := time.Since(begun); got != 4*time.Second {
			t.Errorf("drained after %v", got)
		}
		w.finish("wait1")
		<-running
	})
}

// Drain ends the turns, releases the actors and admits no further ones, while the application still runs. A later
// Close then has nothing left to do.
func TestDrain_EndsTurnsAndTakesNoFurtherActors(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		drained := make(chan struct{})
		go func() { w.runtime.Drain(t.Context()); close(drained) }()
		in(time.Second)
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Errorf("the turn that ran: %v", err)
		}
		<-drained
		w.mu.Lock()
		owned, deleted := len(w.owned), len(w.deleted)
		w.mu.Unlock()
		if owned != 0 || deleted != 1 {
			t.Errorf("%d actors are owned, and %d were deactivated after the drain", owned, deleted)
		}
		late := w.call(t.Context(), "add", "")
		in(time.Second)
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q after the drain, want wait1 only", got)
		}
		if err := w.runtime.Close(t.Context()); err != nil {
			t.Error(err)
		}
		<-late
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.deleted) != 1 {
			t.Errorf("%q were deactivated after the close, want one actor", w.deleted)
		}
	})
}

// If the directory grants an activation while the host drains, the host releases the actor, so that other hosts can
// activate it.
func TestDrain_ReleasesActorThatWasStarting(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		hold := make(chan struct{})
		w.mu.Lock()
		w.holds = map[string]chan struct{}{"2": hold}
		w.mu.Unlock()
		starting := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		go func() {
			_, err := w.runtime.Do(ctx, &actors.Call{Actor: api.Actor{Type: "T", ID: "2"}, Method: "b", Verb: "POST",
				Header: http.Header{}})
			starting <- err
		}()
		synctest.Wait()
		drained := make(chan struct{})
		go func() { w.runtime.Drain(t.Context()); close(drained) }()
		synctest.Wait()
		close(hold)
		in(100 * time.Millisecond)
		w.mu.Lock()
		if w.owned["2"] != 0 {
			t.Error("the draining host still owns the actor")
		}
		w.mu.Unlock()
		w.finish("wait1")
		<-running
		<-drained
		<-starting
	})
}
