package due_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
)

func TestKeeper_FiresAtTheDueTimeAndNotBefore(t *testing.T) {
	w := newWorld(t)
	w.put(job("late", 10*time.Second))
	w.put(job("soon", 5*time.Second))
	w.step(4999 * time.Millisecond)
	w.wantFired()
	w.step(time.Millisecond)
	w.wantFired("soon#1/1")
	w.step(5 * time.Second)
	w.wantFired("late#1/1")
	if _, found := w.get("late"); found {
		t.Error("a job with one tick is still there after it")
	}
	w.checkIndex()
	if w.keeper.Timers() {
		t.Error("a Keeper without work has a timer")
	}
}

func TestKeeper_PastDueTimeFiresAtOnce(t *testing.T) {
	w := newWorld(t)
	w.put(due.Put{Home: home("shop"), Name: "a", Due: "2020-01-01T00:00:00Z"})
	w.idle(0)
	w.wantFired("a#1/1")
}

func TestKeeper_MissedTicksAreOneTick(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	w.step(time.Second)
	w.wantFired("a#1/1")
	w.setRoom(0)
	w.step(10*time.Minute + 300*time.Millisecond)
	w.wantFired()
	w.setRoom(1)
	w.step(100 * time.Millisecond)
	w.wantFired("a#2/1")
	w.step(599 * time.Millisecond)
	w.wantFired()
	w.step(time.Millisecond) // the next tick is due as if no tick was missed
	w.wantFired("a#3/1")
}

func TestKeeper_RepeatsCountFiredTicks(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.Spec.Repeats = 3
	w.put(p)
	for range 6 {
		w.step(time.Second)
	}
	w.wantFired("a#1/1", "a#2/1", "a#3/1")
	w.checkIndex()
}

func TestKeeper_DueTimeIsTheFirstTickOfASchedule(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.Spec.Schedule, p.Due = "0 0 12 * * *", "2026-01-01T09:00:00Z"
	w.put(p)
	w.step(9 * time.Hour)
	w.wantFired("a#1/1")
	w.step(3*time.Hour - time.Millisecond)
	w.wantFired()
	w.step(time.Millisecond)
	w.wantFired("a#2/1")
}

func TestKeeper_TTLEndsWork(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.TTL = "2500ms"
	w.put(p)
	waiting := every("b")
	waiting.Home, waiting.TTL = home("gone"), "2500ms"
	w.put(waiting)
	for range 5 {
		w.step(time.Second)
	}
	if _, found := w.get("a"); found {
		t.Error("the job is there after its ttl")
	}
	got := w.fired()
	slices.Sort(got)
	if want := []string{"a#1/1", "a#2/1", "b#1/1", "b#2/1"}; !slices.Equal(got, want) {
		t.Errorf("fired %s, want %s", got, want)
	}
}

// A tick that is due at the end of the ttl is handed out, although the hand-out comes a little later.
func TestKeeper_LastTickWithinTheTTLIsDelivered(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.TTL = "2s"
	w.put(p)
	w.step(time.Second)
	w.wantFired("a#1/1")
	w.setRoom(0)
	w.step(time.Second)
	w.step(900 * time.Millisecond)
	w.setRoom(1)
	w.step(100 * time.Millisecond)
	w.wantFired("a#2/1")
	if _, found := w.get("a"); found {
		t.Error("the job is there after its last tick")
	}
}

func TestKeeper_AttemptAfterTheTTLIsDropped(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.TTL, p.Spec.Policy = "1500ms", due.NewPolicy(true, nil, time.Second)
	w.put(p)
	w.answerWith(due.Failed)
	w.step(time.Second)
	w.wantFired("a#1/1")
	w.step(time.Second)
	w.wantFired()
	if _, found := w.get("a"); found {
		t.Error("the job is there after its ttl")
	}
}

func TestKeeper_TTLEndsWorkThatCannotBeDelivered(t *testing.T) {
	w := newWorld(t)
	w.setRoom(0)
	p := every("a")
	p.TTL = "2500ms"
	w.put(p)
	testutil.Eventually(t, func() error {
		w.advance(500 * time.Millisecond)
		if _, found := w.get("a"); found {
			return errors.New("the job is there after its ttl")
		}
		return nil
	})
	w.idle(0)
	w.wantFired()
	w.checkIndex()
}

// A search for expired work reads a bounded number of bytes. The next one reads the rest, because it does not read
// work again that has no ttl.
func TestKeeper_BoundsTheSearchForExpiredWork(t *testing.T) {
	w := newWorld(t)
	w.setRoom(0)
	for _, name := range []string{"a", "b", "c", "d"} {
		p := job(name, time.Second)
		p.Spec.Payload = make([]byte, 1<<20)
		w.put(p)
	}
	last := job("e", time.Second)
	last.TTL = "1s"
	w.put(last)
	w.step(10 * time.Second)
	if _, found := w.get("e"); !found {
		t.Error("one search has read more than 4 MiB")
	}
	w.step(time.Second)
	if _, found := w.get("e"); found {
		t.Error("the job is there after its ttl")
	}
	w.checkIndex()
}

func TestKeeper_OverwriteOfWaitingWorkSetsItsTTL(t *testing.T) {
	w := newWorld(t)
	w.setRoom(0)
	p := due.Put{Home: home("shop"), Name: "a", Due: "2026-01-01T00:00:01Z", Overwrite: true}
	w.put(p)
	w.step(2 * time.Second) // a search has read the work, which has no ttl yet
	p.TTL = "3s"
	w.put(p)
	w.step(10 * time.Second)
	if _, found := w.get("a"); found {
		t.Error("the job is there after its ttl")
	}
	w.checkIndex()
}

func TestKeeper_FailurePolicies(t *testing.T) {
	second := time.Second
	for _, c := range []struct {
		name   string
		put    due.Put
		policy due.Policy
		steps  int // of a second
		want   []string
	}{
		{"retries", job("a", second), due.Policy{Retries: 2, Interval: second}, 9,
			[]string{"a#1/1", "a#1/2", "a#1/3"}},
		{"drop", job("a", second), due.Policy{}, 5, []string{"a#1/1"}},
		{"drop, with a schedule", every("a"), due.Policy{}, 3, []string{"a#1/1", "a#2/1", "a#3/1"}},
		{"for ever", job("a", second), due.Policy{Forever: true, Interval: second}, 5,
			[]string{"a#1/1", "a#1/2", "a#1/3", "a#1/4", "a#1/5"}},
		{"persist", job("a", second), due.Policy{Retries: 1, Interval: second, Persist: 3 * second}, 8,
			[]string{"a#1/1", "a#1/2", "a#1/3", "a#1/4"}},
		{"retries pass the next tick", every("a"), due.Policy{Retries: 2, Interval: second}, 6,
			[]string{"a#1/1", "a#1/2", "a#1/3", "a#2/1", "a#2/2", "a#2/3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.answerWith(due.Failed)
			c.put.Spec.Policy = c.policy
			w.put(c.put)
			for range c.steps {
				w.step(second)
			}
			w.wantFired(c.want...)
			w.checkIndex()
		})
	}
}

func TestKeeper_FailureIsStored(t *testing.T) {
	w := newWorld(t)
	w.answerWith(due.Failed)
	p := job("a", time.Second)
	p.Spec.Policy = due.Policy{Forever: true, Interval: time.Minute}
	w.put(p)
	w.step(time.Second)
	got, found := w.get("a")
	if !found || got.State.Attempt != 1 || got.State.Error != "no luck" || got.State.At != begin+61_000 {
		t.Errorf("%t %+v", found, got.State)
	}
}

func TestKeeper_TheLastAttemptIsFinal(t *testing.T) {
	w := newWorld(t)
	var final []bool
	w.answerFunc(func(tick *due.Tick) (due.Result, error) {
		final = append(final, tick.Final)
		return due.Failed, errors.New("no luck")
	})
	p := job("a", time.Second)
	p.Spec.Policy = due.Policy{Retries: 1, Interval: time.Second}
	w.put(p)
	w.step(time.Second)
	w.step(time.Second)
	if !slices.Equal(final, []bool{false, true}) {
		t.Errorf("final %v", final)
	}
}

func TestKeeper_UnknownWorkAndCancelEndIt(t *testing.T) {
	w := newWorld(t)
	w.answerWith(due.Unknown)
	w.put(job("a", time.Second))
	w.step(time.Second)
	w.answerWith(due.Cancel)
	w.put(every("b"))
	w.step(time.Second)
	w.step(time.Minute)
	w.wantFired("a#1/1", "b#1/1")
	w.checkIndex()
}

func TestKeeper_DeliveryWithoutAnswerIsNoAttempt(t *testing.T) {
	w := newWorld(t)
	w.answerWith(due.Undelivered)
	p := job("a", time.Second)
	w.put(p)
	w.idle(0)
	w.advance(time.Second)
	w.idle(1) // it pauses before it tries again
	w.answerWith(due.Done)
	w.advance(100 * time.Millisecond)
	w.idle(0)
	w.wantFired("a#1/1", "a#1/1")
}

func TestKeeper_NewLeaderGoesOn(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	results := w.hold()
	w.idle(0)
	w.advance(time.Second)
	w.called(1)
	first := w.ticksNow()[0]
	w.mu.Lock()
	w.leads = false
	old := w.keeper
	w.mu.Unlock()
	old.Update()
	w.idle(1) // the old leader knows that it does not lead, and still waits for the answer
	w.answerWith(due.Done)
	w.lead()
	w.idle(0)
	got := w.ticksNow()
	if len(got) != 2 || got[1].Revision != first.Revision || got[1].Number != first.Number {
		t.Fatalf("the new leader handed out %+v after %+v", got, first)
	}
	results <- due.Failed // the answer to the old leader has no effect
	w.step(time.Second)
	w.wantFired("a#1/1", "a#1/1", "a#2/1")
	w.checkIndex()
}

// A leader that was deposed without knowing it may still have work that was removed.
func TestKeeper_WithoutMajorityDeliversNothing(t *testing.T) {
	w := newWorld(t)
	w.put(job("a", time.Second))
	w.idle(0)
	w.setAlone(true)
	w.advance(time.Second)
	w.idle(1) // it tries again after a pause
	w.wantFired()
	w.setAlone(false)
	testutil.Eventually(t, func() error {
		w.advance(100 * time.Millisecond)
		if len(w.ticksNow()) == 0 {
			return errors.New("the tick is not delivered")
		}
		return nil
	})
	w.idle(0)
	w.wantFired("a#1/1")
}

func (w *world) setAlone(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alone = yes
}

func (w *world) ticksNow() []due.Tick {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ticks)
}

func TestKeeper_OverwriteInFlight(t *testing.T) {
	w := newWorld(t)
	first := w.put(every("a"))
	results := w.hold()
	w.idle(0)
	w.advance(time.Second)
	w.called(1)
	p := job("a", 0)
	p.Overwrite = true
	second := w.put(p)
	if second <= first {
		t.Errorf("the revision went from %d to %d", first, second)
	}
	w.called(1) // the new work waits until the tick of the old one has ended
	w.wantFired("a#1/1")
	w.answerWith(due.Done)
	results <- due.Done
	w.idle(0)
	w.wantFired("a#1/1")
	if _, found := w.get("a"); found {
		t.Error("the new work is there after its only tick")
	}
	w.checkIndex()
}

func TestKeeper_RemoveInFlight(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	results := w.hold()
	w.idle(0)
	w.advance(time.Second)
	w.called(1)
	if w.last.Err() != nil {
		t.Error("a delivery is canceled before its work is removed")
	}
	removed, err := w.keeper.Remove(t.Context(), home("shop"), "a")
	if !removed || err != nil {
		t.Fatal(removed, err)
	}
	if w.last.Err() == nil {
		t.Error("the delivery of removed work goes on")
	}
	results <- due.Done
	w.idle(0)
	w.step(time.Minute)
	w.wantFired("a#1/1")
	w.checkIndex()
	if removed, err := w.keeper.Remove(t.Context(), home("shop"), "a"); removed || err != nil {
		t.Error(removed, err)
	}
}

func TestKeeper_RunFiresNow(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.Spec.Schedule = "@daily"
	w.put(p)
	found, err := w.keeper.Run(t.Context(), home("shop"), "a")
	if !found || err != nil {
		t.Fatal(found, err)
	}
	w.idle(0)
	w.wantFired("a#1/1")
	got, _ := w.get("a")
	if want := begin + 24*60*60*1000; got.State.Due != want {
		t.Errorf("the next tick is due at %d, want %d", got.State.Due, want)
	}
	if found, err := w.keeper.Run(t.Context(), home("shop"), "b"); found || err != nil {
		t.Error(found, err)
	}
}

func TestKeeper_PutConflictsAndRepeats(t *testing.T) {
	w := newWorld(t)
	p := every("a")
	p.Spec.Request = "one"
	first := w.put(p)
	if again := w.put(p); again != first {
		t.Errorf("a repeated call got revision %d, the first one %d", again, first)
	}
	p.Spec.Request = "two"
	if _, err := w.keeper.Put(t.Context(), &p); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second job with the name: %v", err)
	}
	p.Overwrite = true
	if second := w.put(p); second == first {
		t.Error("an overwrite keeps the revision")
	}
	w.checkIndex()
}

func TestKeeper_AcknowledgementIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	w.idle(0)
	w.mu.Lock()
	fails := 2
	w.refuse = func(*command.Request) error {
		if fails--; fails >= 0 {
			return fault.New(fault.Timeout, "test", "slow")
		}
		return nil
	}
	w.mu.Unlock()
	w.advance(time.Second)
	w.idle(1)
	for range 2 {
		w.advance(100 * time.Millisecond)
		testutil.Eventually(t, func() error {
			if !w.keeper.Idle(0) && !w.keeper.Idle(1) {
				return errors.New("busy")
			}
			return nil
		})
	}
	testutil.Eventually(t, func() error {
		w.advance(0)
		if got, _ := w.get("a"); got.State.Ticks != 1 {
			w.advance(10 * time.Millisecond)
			return fmt.Errorf("%d ticks are acknowledged", got.State.Ticks)
		}
		return nil
	})
	w.wantFired("a#1/1")
}

func TestKeeper_FloodIsBoundedAndFair(t *testing.T) {
	const flood = 5000
	w := newWorld(t)
	w.setRoom(0)
	for i := range flood {
		p := job(fmt.Sprintf("%05d", i), time.Second)
		p.Home = home("flood")
		w.put(p)
	}
	w.put(job("other", time.Second))
	w.idle(0)
	w.setRoom(4)
	w.advance(time.Second)
	testutil.Eventually(t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.ticks) <= flood {
			return fmt.Errorf("%d ticks were delivered", len(w.ticks))
		}
		return nil
	})
	w.idle(0)
	if n := w.keeper.Buffered(); n > due.MaxBuffer {
		t.Errorf("%d index records are in memory", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.most[home("flood")] > 4 {
		t.Errorf("%d ticks were under way together", w.most[home("flood")])
	}
	if turn := slices.Index(w.asked, home("shop")); turn < 0 || turn > 1 {
		t.Errorf("the first turns are %v, so the other application had none after the first tick", w.asked)
	}
}

// While the log accepts nothing, at most 1024 ticks of a home are answered and not acknowledged.
func TestKeeper_BoundsWhatIsNotAcknowledged(t *testing.T) {
	const jobs, bound, room = 1500, 1024, 4
	w := newWorld(t)
	for i := range jobs {
		w.put(job(fmt.Sprint("a", i), time.Minute))
	}
	proceed := make(chan struct{})
	w.mu.Lock()
	w.stalled = proceed
	w.mu.Unlock()
	w.advance(time.Minute)
	delivered := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ticks)
	}
	testutil.Eventually(t, func() error {
		if n := delivered(); n < bound || !w.keeper.Idle(n) {
			return fmt.Errorf("%d ticks are delivered", n)
		}
		return nil
	})
	if n := delivered(); n > bound+room {
		t.Errorf("%d ticks are delivered while the log accepts nothing", n)
	}
	close(proceed)
	w.idle(0)
	if n := delivered(); n != jobs {
		t.Errorf("%d ticks were delivered in all", n)
	}
}

func TestKeeper_BackupBringsWorkBack(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	backup := w.backup()
	if len(backup) != 3 {
		t.Fatalf("a backup has %d records of a job", len(backup))
	}
	removed, err := w.keeper.Remove(t.Context(), home("shop"), "a")
	if !removed || err != nil {
		t.Fatal(removed, err)
	}
	w.restore(backup)
	w.step(time.Second)
	w.wantFired("a#1/1")
	w.checkIndex()
}

// The ticks of two jobs fail at their first two attempts. Only one warning is logged, because of the rate limit.
func TestKeeper_WarnsOfFirstFailedAttempts(t *testing.T) {
	w := newWorld(t)
	w.answer = func(t *due.Tick) (due.Result, error) {
		if t.Attempt < 3 {
			return due.Failed, errors.New("the application answered 500")
		}
		return due.Done, nil
	}
	for _, name := range []string{"a", "b"} {
		j := job(name, time.Second)
		j.Spec.Policy = due.DefaultPolicy()
		w.put(j)
	}
	for range 3 {
		w.step(time.Second)
	}
	if got := w.fired(); len(got) != 6 {
		t.Errorf("fired %s, want three attempts of each", got)
	}
	w.keeper.Close()
	log := w.log.String()
	if strings.Count(log, "the first attempt of a tick has failed") != 1 || !strings.Contains(log, "name=") ||
		!strings.Contains(log, "answered 500") {
		t.Errorf("the log is %q", log)
	}
}

// All targets have as many ticks as they may have. Another target that appears gets the next tick. The Keeper finds it
// by polling.
func TestKeeper_NoticesNewTargetsWhileTheOthersAreBusy(t *testing.T) {
	w := newWorld(t)
	w.setRoom(1)
	results := w.hold()
	w.put(job("a", time.Second))
	w.put(job("b", 2*time.Second))
	w.idle(0)
	w.advance(2 * time.Second)
	w.called(1)
	w.setRoom(2)
	w.advance(100 * time.Millisecond)
	w.called(2)
	results <- due.Done
	results <- due.Done
	w.idle(0)
	w.wantFired("a#1/1", "b#1/1")
}

// A tick gets no answer, so the Keeper pauses. Work that replaces it, or a request to run it now, does not wait for
// the end of the pause. New work begins with the shortest pause.
func TestKeeper_ChangeEndsThePauseOfAnUndeliveredTick(t *testing.T) {
	overwrite := func(w *world) {
		p := job("a", 0)
		p.Overwrite = true
		w.put(p)
	}
	remove := func(w *world) {
		removed, err := w.keeper.Remove(w.t.Context(), home("shop"), "a")
		if !removed || err != nil {
			w.t.Error(removed, err)
		}
	}
	for _, c := range []struct {
		name   string
		change func(w *world)
		lost   uint64
	}{
		{"overwritten", overwrite, 0},
		{"removed and put", func(w *world) { remove(w); w.put(job("a", 0)) }, 0},
		{"run", func(w *world) {
			found, err := w.keeper.Run(w.t.Context(), home("shop"), "a")
			if !found || err != nil {
				w.t.Error(found, err)
			}
		}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.answerWith(due.Undelivered)
			w.put(job("a", time.Second))
			w.idle(0)
			w.advance(time.Second)
			w.pauses(1)
			for i := range 4 {
				w.advance(100 * time.Millisecond << i)
				w.pauses(2 + i)
			}
			w.fired() // the pause is 1.6 s now
			c.change(w)
			w.pauses(1)
			if got := w.ticksNow()[0].Lost; got != c.lost {
				t.Errorf("%d deliveries without an answer before, want %d", got, c.lost)
			}
			w.fired()
			w.answerWith(due.Done)
			pause := 100 * time.Millisecond << c.lost
			w.advance(pause - time.Millisecond)
			w.pauses(0)
			w.advance(time.Millisecond)
			w.idle(0)
			w.wantFired("a#1/1")
		})
	}
}

// The overwrite comes while the delivery runs. The delivery then gets no answer, and the new work does not pause.
func TestKeeper_OverwriteDuringAnUndeliveredTickSkipsThePause(t *testing.T) {
	w := newWorld(t)
	w.put(every("a"))
	results := w.hold()
	w.idle(0)
	w.advance(time.Second)
	w.called(1)
	p := job("a", 0)
	p.Overwrite = true
	w.put(p)
	w.called(1)
	w.answerWith(due.Done)
	results <- due.Undelivered
	w.idle(0)
	w.wantFired("a#1/1", "a#1/1")
}

// A restore makes the Keeper read the index again. It finds the record of the tick that pauses, which has not changed.
func TestKeeper_RereadKeepsThePauseOfAnUndeliveredTick(t *testing.T) {
	w := newWorld(t)
	w.answerWith(due.Undelivered)
	w.put(job("a", time.Second))
	w.idle(0)
	w.advance(time.Second)
	w.pauses(1)
	w.restore(w.backup())
	w.pauses(1)
	w.advance(99 * time.Millisecond)
	w.pauses(1)
	w.advance(time.Millisecond)
	w.pauses(2)
}

// A removal ends the pause, although no further work has the name.
func TestKeeper_RemovalEndsThePauseOfAnUndeliveredTick(t *testing.T) {
	w := newWorld(t)
	w.answerWith(due.Undelivered)
	w.put(job("a", time.Second))
	w.idle(0)
	w.advance(time.Second)
	w.pauses(1)
	removed, err := w.keeper.Remove(t.Context(), home("shop"), "a")
	if !removed || err != nil {
		t.Error(removed, err)
	}
	w.idle(0)
	w.wantFired("a#1/1")
}
