package actors_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

// ticks is a Plan with a tick after each period. more is the number of ticks that are left.
type ticks struct {
	period time.Duration
	more   int
}

// Next implements actors.Plan.
func (p *ticks) Next() (time.Duration, bool) {
	p.more--
	return p.period, p.more >= 0
}

// planTicks returns a plan with the period of the timer t. The number of ticks is the length of its ttl.
func planTicks(t *actors.Reminder) (actors.Plan, error) {
	period, err := time.ParseDuration(t.Period)
	return &ticks{period, len(t.TTL)}, err
}

func (w *world) service() *actors.Service { return actors.NewService(api.App{ID: "app"}, w.runtime) }

func (w *world) setTimer(name, period string, ticks int) error {
	return w.service().SetTimer(context.Background(), &actors.Reminder{Actor: api.Actor{Type: "T", ID: "1"},
		Name: name, Period: period,
		TTL: strings.Repeat(".", ticks), Callback: "cb", Data: []byte(`{"a":1}`)})
}

// in waits for d of simulated time.
func in(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestTimer_CallsTheActorWhileItIsActive(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if err := w.setTimer("t", "10s", 3); err != nil {
			t.Fatal(err)
		}
		in(10*time.Second + time.Millisecond)
		if got := w.turns(); got != "a t" {
			t.Errorf("turns %q after one period", got)
		}
		w.mu.Lock()
		body := w.bodies[len(w.bodies)-1]
		w.mu.Unlock()
		if want := `{"data":{"a":1},"callback":"cb","dueTime":"","period":"10s"}`; body != want {
			t.Errorf("the application got %s, want %s", body, want)
		}
		in(time.Minute)
		if got := w.turns(); got != "a t t t" {
			t.Errorf("turns %q after all periods", got)
		}
	})
}

func TestTimer_ActivatesTheActor(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := w.setTimer("t", "10s", 2); err != nil {
			t.Fatal(err)
		}
		in(10*time.Second + time.Millisecond)
		if got := w.turns(); got != "t" {
			t.Errorf("turns %q after one period", got)
		}
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		in(time.Minute)
		if got := w.turns(); got != "t a t" {
			t.Errorf("turns %q after all periods", got)
		}
	})
}

func TestTimer_WaitsForTheTypesOfTheApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plain, nil)
		done := make(chan error, 1)
		go func() { done <- w.setTimer("t", "10s", 1) }()
		<-time.After(time.Second)
		w.runtime.Returned("app", w)
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = w.runtime.Close(t.Context())
	})
}

func TestTimer_OfAnotherHostIsRefused(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		other := &actors.Reminder{Actor: api.Actor{Type: "Unknown", ID: "1"}, Name: "t", Period: "1s", TTL: "."}
		for range 2 {
			err := w.service().SetTimer(t.Context(), other)
			if err == nil || api.AsError(err).Code != api.CodeTimerCreate || api.AsError(err).Kind != api.Unavailable {
				t.Errorf("a timer of a type that this node does not host: %v", err)
			}
		}
	})
}

func TestTimer_EndsWhenRemovedReplacedOrCanceled(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"removed", "replaced", "cancel"} {
			if err := w.setTimer(name, "1s", 100); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.setTimer("replaced", "3s", 1); err != nil {
			t.Fatal(err)
		}
		if err := w.service().RemoveTimer(t.Context(), api.Actor{Type: "T", ID: "1"}, "removed"); err != nil {
			t.Fatal(err)
		}
		in(10 * time.Second)
		if got := w.turns(); got != "a cancel replaced" {
			t.Errorf("turns %q", got)
		}
	})
}

// Ticks of a timer count as turns, so they keep the actor from becoming idle. Timers end with the activation.
func TestTimer_KeepsTheActorAndEndsWithIt(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if err := w.setTimer("t", "40s", 3); err != nil {
			t.Fatal(err)
		}
		in(2*time.Minute + time.Second)
		w.mu.Lock()
		deleted := len(w.deleted)
		w.mu.Unlock()
		if deleted != 0 {
			t.Error("an actor with a timer was deactivated between two ticks")
		}
		if err := w.setTimer("late", "5m", 3); err != nil {
			t.Fatal(err)
		}
		in(10 * time.Minute)
		if got := w.turns(); got != "a t t t" {
			t.Errorf("turns %q: the actor is idle after a minute, which ends its timers", got)
		}
	})
}

func TestTimer_TickWaitsForItsTurn(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if err := w.setTimer("t", "1s", 100); err != nil {
			t.Fatal(err)
		}
		running := w.call(t.Context(), "wait1", "")
		in(10 * time.Second)
		if got := w.turns(); got != "a wait1" {
			t.Errorf("turns %q while one runs", got)
		}
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := w.turns(); got != "a wait1 t" {
			t.Errorf("turns %q: ticks that were missed are one", got)
		}
	})
}

func TestTimers_AreBounded(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			if err := w.setTimer("t"+strings.Repeat("x", i%500)+string(rune('a'+i/500)), "1h", 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.setTimer("more", "1h", 1); reason(err) != api.ReasonOverloaded {
			t.Errorf("one timer too many: %v", err)
		}
		if err := w.setTimer("ta", "2h", 1); err != nil {
			t.Errorf("a timer is replaced: %v", err)
		}
	})
}

// Remind calls the actor and returns the status of the answer. A header of the answer cancels all further ticks.
func TestRemind_CallsTheActor(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		for _, c := range []struct {
			name   string
			status int
			cancel bool
		}{{"r", 200, false}, {"cancel", 200, true}, {"none", 404, false}} {
			status, cancel, err := w.runtime.Remind(t.Context(), "", &actors.Reminder{Name: c.name, DueTime: "1s",
				Actor: api.Actor{Type: "T", ID: "1"}}, "7.1", 2)
			if status != c.status || cancel != c.cancel || err != nil {
				t.Errorf("%s: %d %t %v", c.name, status, cancel, err)
			}
		}
		h := w.headers[0]
		if got := h.Get("Quorate-Reminder-Tick") + " " + h.Get("Quorate-Reminder-Attempt"); got != "7.1 2" {
			t.Errorf("headers %q", got)
		}
		if got, want := w.bodies[0], `{"dueTime":"","period":""}`; got != want {
			t.Errorf("the application got %s, want %s", got, want)
		}
	})
}

// SetReminder waits for the types of an application that is starting. Afterwards, it refuses other types at once.
func TestSetReminder_WaitsForTheTypesOfAStartingApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plain, nil)
		w.slow = time.Second
		set := func(kind string) (string, time.Duration) {
			begun := time.Now()
			err := w.service().SetReminder(t.Context(), &actors.Reminder{Name: "r", Actor: api.Actor{Type: kind,
				ID: "1"}}, true)
			return reason(err), time.Since(begun)
		}
		if got, after := set("T"); got != api.CodeReminderNonHosted || after != 0 {
			t.Errorf("before the application accepts calls: %q after %v", got, after)
		}
		w.runtime.Returned("app", w)
		if got, after := set("T"); got != "" || after < w.slow || after > 2*w.slow {
			t.Errorf("while the application starts: %q after %v", got, after)
		}
		if got, after := set("Other"); got != api.CodeReminderNonHosted || after != 0 {
			t.Errorf("another type: %q after %v", got, after)
		}
		_ = w.runtime.Close(t.Context())
	})
}

// Epoch waits until the types of a starting application are registered. Otherwise a client could write the state of an
// actor without an epoch.
func TestEpoch_WaitsForTheTypesOfAStartingApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plain, nil)
		w.slow = time.Second
		w.runtime.Returned("app", w)
		if w.runtime.Tried("app") {
			t.Error("the types are registered before the application has named them")
		}
		begun := time.Now()
		e, _, hosts := w.runtime.Epoch(t.Context(), "app", api.Actor{Type: "T", ID: "1"})
		if after := time.Since(begun); e != nil || !hosts || after < w.slow || after > 2*w.slow {
			t.Errorf("epoch %v, hosts %v after %v", e, hosts, after)
		}
		if !w.runtime.Tried("app") {
			t.Error("the types are not registered")
		}
		_ = w.runtime.Close(t.Context())
	})
}

// The first attempt to register the types of an application ends with its first answer, even if that is wrong.
func TestTried_AfterWrongConfiguration(t *testing.T) {
	inWorld(t, "{", func(t *testing.T, w *world) {
		if !w.runtime.Tried("app") || w.runtime.Tried("other") {
			t.Errorf("%v, an application that never returned %v", w.runtime.Tried("app"), w.runtime.Tried("other"))
		}
	})
}

func TestReminding_CountsTicksByNode(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		done := make(chan error, 1)
		go func() {
			_, _, err := w.runtime.Remind(t.Context(), "", &actors.Reminder{Name: "wait1",
				Actor: api.Actor{Type: "T", ID: "1"}}, "7.1", 1)
			done <- err
		}()
		synctest.Wait()
		if got := w.runtime.Reminding(api.App{ID: "app"}); len(got) != 1 || got["n"] != 1 {
			t.Errorf("ticks under way: %v", got)
		}
		if got := w.runtime.Reminding(api.App{ID: "other"}); len(got) != 0 {
			t.Errorf("ticks of another application: %v", got)
		}
		w.finish("wait1")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := w.runtime.Reminding(api.App{ID: "app"}); len(got) != 0 {
			t.Errorf("ticks after the answer: %v", got)
		}
	})
}

// A tick that waits for its turn ends with its context, so that a removed reminder does not fire later.
func TestRemind_GivesUpBeforeItsTurn(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, _, err := w.runtime.Remind(ctx, "", &actors.Reminder{Name: "r", Actor: api.Actor{Type: "T", ID: "1"}},
				"7.1", 1)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; err == nil {
			t.Error("a tick without a turn was delivered")
		}
		w.finish("wait1")
		if err := <-running; err != nil {
			t.Error(err)
		}
		in(time.Second)
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q", got)
		}
	})
}

func readAll(r io.Reader) string {
	if r == nil {
		return ""
	}
	b, _ := io.ReadAll(r)
	return string(b)
}
