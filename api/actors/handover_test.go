package actors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// handedOver is the result of HandOver.
type handedOver struct {
	moved, busy int
	err         error
}

// handOver begins to move the actors 1, which tests call, and 2, which is not active. It returns the channel that
// receives the result.
func (w *world) handOver(ctx context.Context) chan handedOver {
	done := make(chan handedOver, 1)
	go func() {
		var r handedOver
		r.moved, r.busy, r.err = w.runtime.HandOver(ctx, "app", []api.Actor{{Type: "T", ID: "1"}, {Type: "T", ID: "2"}},
			"s")
		done <- r
	}()
	synctest.Wait()
	return done
}

// HandOver moves an actor after its running turn, also if the actor has a timer.
func TestHandOver_AfterTheRunningTurn(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		if err := w.setTimer("t", "10s", 1); err != nil {
			t.Fatal(err)
		}
		done := w.handOver(t.Context())
		in(time.Second)
		if len(w.given) != 0 {
			t.Error("the actor was given away while a turn ran")
		}
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Error(err)
		}
		if r := <-done; r != (handedOver{moved: 1}) || len(w.given) != 1 || w.given[0] != "1 to s" ||
			len(w.deleted) != 1 {
			t.Errorf("%+v, given %q, deactivated %q", r, w.given, w.deleted)
		}
	})
}

// HandOver leaves an actor whose turn lasts longer than 5 s. The application continues with a turn, whatever the host
// does. If the actor left the host before the end of the turn, the host could activate the actor again. Then a second
// turn would write at the same time with the same epoch.
func TestHandOver_LeavesActorWithLongTurn(t *testing.T) {
	inWorld(t, `{"entities":["T"],"drainOngoingCallTimeout":"1s"}`, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		next := w.call(t.Context(), "b", "")
		begun := time.Now()
		r := <-w.handOver(t.Context())
		if got := time.Since(begun); r != (handedOver{busy: 1}) || got != 5*time.Second {
			t.Errorf("%+v after %v", r, got)
		}
		in(time.Minute)
		if got := w.turns(); got != "wait1" || w.contexts[0].Err() != nil || len(w.given)+len(w.deleted) != 0 {
			t.Errorf("turns %q, the first one has %v; given %q, deactivated %q", got, w.contexts[0].Err(), w.given,
				w.deleted)
		}
		w.finish("wait1")
		for _, done := range []chan error{running, next} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if first, second := w.headers[0].Get("Quorate-Actor-Epoch"), w.headers[1].Get("Quorate-Actor-Epoch"); first !=
			second {
			t.Errorf("the turns have the epochs %s and %s, but the actor stayed", first, second)
		}
		if r := <-w.handOver(t.Context()); r != (handedOver{moved: 1}) {
			t.Errorf("%+v after the turn", r)
		}
	})
}

// A transfer without an answer may be applied late. So the host repeats the transfer until there is an answer, even if
// the operator has gone. The host does not activate the actor before that.
func TestHandOver_ContinuesWithoutItsCaller(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.refused = 5
		w.mu.Unlock()
		ctx, leave := context.WithCancel(t.Context())
		done := w.handOver(ctx)
		leave()
		if r := <-done; !fault.Is(r.err, fault.Indeterminate) {
			t.Errorf("the operator who has gone got %+v", r)
		}
		if err := <-w.call(t.Context(), "b", ""); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused != 0 || len(w.given) != 1 {
			t.Errorf("%d transfers are left to refuse, given %q before the next turn", w.refused, w.given)
		}
	})
}

// While spreading waits for a turn to end, an operator moves the same actor. The actor moves once, to the host that
// the operator chose.
func TestHandOver_PrecedesTheSpreading(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		w.mu.Lock()
		w.advice.Give, w.advice.To, w.advice.Types = 1, "other", []string{"T"}
		w.mu.Unlock()
		in(time.Second)
		done := w.handOver(t.Context())
		in(4500 * time.Millisecond) // the spreading has ended
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Error(err)
		}
		if r := <-done; r != (handedOver{moved: 1}) || len(w.given) != 1 || w.given[0] != "1 to s" {
			t.Errorf("%+v, given %q", r, w.given)
		}
	})
}
