package due_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/kv"
)

func TestKeeper_BoundsTheJobsOfAnApplication(t *testing.T) {
	w := newWorld(t)
	w.limit = 300
	w.lead()
	for i := range 300 {
		w.put(job(fmt.Sprint("a", i), time.Minute))
	}
	full := job("b", time.Minute)
	for range 2 {
		if _, err := w.keeper.Put(t.Context(), &full); !fault.Is(err, fault.Overloaded) {
			t.Fatalf("a job over the limit: %v", err)
		}
	}
	other := job("b", time.Minute)
	other.Home = home("other")
	w.put(other)
	reminder := job("b", time.Minute)
	reminder.Kind = due.KindReminder
	w.put(reminder)
	again := job("a1", time.Hour)
	again.Overwrite = true
	w.put(again)
	if _, err := w.keeper.Remove(t.Context(), home("shop"), "a7"); err != nil {
		t.Fatal(err)
	}
	w.put(full)
	w.step(time.Minute) // all but one end
	w.put(job("c", time.Minute))
	w.lead() // the next leader counts the stored jobs
	for i := range 298 {
		w.put(job(fmt.Sprint("d", i), time.Minute))
	}
	if _, err := w.keeper.Put(t.Context(), &full); !fault.Is(err, fault.Overloaded) {
		t.Fatalf("a job over the limit at the next leader: %v", err)
	}
}

func TestKeeper_RemovesByPrefixInBatches(t *testing.T) {
	w := newWorld(t)
	for i := range 299 {
		w.put(job(fmt.Sprint("a", i), time.Minute))
	}
	w.put(job("b", time.Minute))
	w.commits = 0
	n, err := w.keeper.RemovePrefix(t.Context(), home("shop"), "a")
	testutil.Must(t, err)
	if n != 299 || w.commits > 2 {
		t.Errorf("%d jobs were removed by %d requests", n, w.commits)
	}
	w.checkIndex()
	w.step(time.Minute)
	w.wantFired("b#1/1")
	if n, err = w.keeper.RemovePrefix(t.Context(), home("shop"), ""); n != 0 || err != nil {
		t.Errorf("%d jobs of none were removed, %v", n, err)
	}
}

// If a job changes while a batch is removed, the jobs are removed one by one.
func TestKeeper_RemovesByPrefixWhatChangesMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.put(job("a1", time.Minute))
	w.put(job("a2", time.Minute))
	once := true
	w.refuse = func(r *command.Request) error {
		if once && len(r.Ops) == 6 {
			once = false
			changed := job("a1", time.Hour)
			of, err := changed.Resolve(w.Now())
			testutil.Must(t, err)
			old, _ := w.get("a1")
			_, err = w.apply(&command.Request{Kind: command.KindWrite, Ops: due.PutOps(&of, &old)})
			return err
		}
		return nil
	}
	n, err := w.keeper.RemovePrefix(t.Context(), home("shop"), "a")
	if n != 2 || err != nil || once {
		t.Errorf("%d were removed, %v", n, err)
	}
	w.checkIndex()
}

// Work that cannot be decoded stays. It does not count as removed, and frees no place.
func TestKeeper_RemovesByPrefixAllButUndecodableWork(t *testing.T) {
	w := newWorld(t)
	w.limit = 300
	w.lead()
	for i := range 300 {
		w.put(job(fmt.Sprintf("a%03d", i), time.Minute))
	}
	w.mu.Lock() // the damaged job is in the first of two batches
	_, err := w.apply(&command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
		Store: kv.DueStore, Key: home("shop").Keys("a005")[0], Value: []byte{99}}}})
	w.mu.Unlock()
	testutil.Must(t, err)
	for _, want := range []int{299, 0} {
		n, err := w.keeper.RemovePrefix(t.Context(), home("shop"), "a")
		if n != want || !fault.Is(err, fault.Corrupt) {
			t.Errorf("%d jobs were removed, want %d; %v", n, want, err)
		}
	}
	for i := range 299 {
		w.put(job(fmt.Sprint("b", i), time.Minute))
	}
	full := job("c", time.Minute)
	if _, err := w.keeper.Put(t.Context(), &full); !fault.Is(err, fault.Overloaded) {
		t.Errorf("a job over the limit: %v", err)
	}
}

// A job ends after it was listed and before its state is read. It does not count as removed.
func TestKeeper_RemovesByPrefixWhatHasNotEnded(t *testing.T) {
	w := newWorld(t)
	w.put(job("a1", time.Minute))
	w.put(job("a2", time.Minute))
	w.idle(0)
	end := func() {
		old, _ := w.get("a2")
		_, err := w.apply(&command.Request{Kind: command.KindWrite, Ops: due.RemoveOps(&old)})
		testutil.Must(t, err)
	}
	w.mu.Lock()
	w.reading = func() { w.reading = end } // the first read lists the jobs, the second one reads their states
	w.mu.Unlock()
	n, err := w.keeper.RemovePrefix(t.Context(), home("shop"), "a")
	if n != 1 || err != nil {
		t.Errorf("%d jobs were removed, want 1; %v", n, err)
	}
	w.checkIndex()
}

// The answer to a put is lost, and its job has already fired when the put is repeated. The repeated put does not store
// the job again.
func TestKeeper_RepeatedPutAfterTheTickStoresNothing(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	res, err := w.apply(&command.Request{Kind: command.KindRegister, Name: "node"})
	w.mu.Unlock()
	testutil.Must(t, err)
	p := job("a", time.Second)
	p.Spec.Request, p.ID = "r", command.RequestID{Origin: res.Revisions[0], Seq: 1}
	revision := w.put(p)
	w.step(time.Second)
	w.wantFired("a#1/1")
	if again := w.put(p); again != revision {
		t.Errorf("the repetition was answered with revision %d, want %d", again, revision)
	}
	w.step(time.Second)
	w.wantFired()
	if _, found := w.get("a"); found {
		t.Error("the repetition stored the job again")
	}
	p.Spec.Request, p.ID.Origin = "s", 999
	if n := w.put(p); n != 0 {
		t.Errorf("a put with an unknown origin was answered with %d", n)
	}
}

func TestKeeper_ReportsWhatWaits(t *testing.T) {
	w := newWorld(t)
	w.setRoom(0)
	w.put(job("a", time.Second))
	w.put(job("b", 2*time.Second))
	w.put(job("c", time.Hour))
	w.step(5 * time.Second)
	testutil.Eventually(t, func() error {
		got, now, ok := w.keeper.Waiting(due.KindJob)
		if want := (due.Waiting{Ticks: 2, Oldest: begin + 1000}); !ok || got != want || now != begin+5000 {
			return fmt.Errorf("%+v at %d, want %+v", got, now-begin, want)
		}
		return nil
	})
	if _, _, ok := w.keeper.Waiting(due.KindReminder); ok {
		t.Error("there are reminders")
	}
}

func TestKeeper_RemembersThatTheTargetDoesNotKnowTheJob(t *testing.T) {
	w := newWorld(t)
	w.answerFunc(func(*due.Tick) (due.Result, error) { return due.Unknown, errors.New("404") })
	w.put(every("a"))
	w.step(time.Second)
	if got, _ := w.get("a"); got.State.Error == "" || got.State.Ticks != 1 {
		t.Errorf("after the answer 404: %+v", got.State)
	}
	w.answerWith(due.Done)
	w.step(time.Second)
	if got, _ := w.get("a"); got.State.Error != "" || got.State.Ticks != 2 {
		t.Errorf("after the answer 200: %+v", got.State)
	}
}
