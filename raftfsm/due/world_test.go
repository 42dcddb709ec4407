package due_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

const begin = grouptest.Epoch

func home(app string) due.Home { return due.Home{Kind: due.KindJob, Store: "system", Prefix: app} }

// world is a group with one replica, a clock that only advance moves, and an application that answers as the test
// says.
type world struct {
	t       testing.TB
	machine *kv.Machine

	mu      sync.Mutex
	keeper  *due.Keeper
	leads   bool
	term    uint64
	index   uint64
	alone   bool // no majority confirms that the server leads
	room    int
	asked   []due.Home       // homes of the first ten calls of Room with a result above 0
	most    map[due.Home]int // ticks of a home that were under way together
	going   map[due.Home]int
	ticks   []due.Tick      // in the order of their delivery
	last    context.Context // of the last delivery
	answer  func(t *due.Tick) (due.Result, error)
	refuse  func(r *command.Request) error // before a request is applied
	reading func()                         // called once, before the next read of the replica
	logger  *slog.Logger                   // writes to log
	log     bytes.Buffer                   // of the keepers
	limit   int                            // of jobs of an application; 0 = the default
	commits int
	stalled chan struct{} // nil, or what every commit waits for

	clock  sync.Mutex // never locked before another mutex
	now    uint64
	timers map[*timer]bool
}

type timer struct {
	at uint64
	f  func()
}

func newWorld(t testing.TB) *world {
	t.Helper()
	m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	w := &world{t: t, machine: m, term: 1, now: begin, timers: map[*timer]bool{}, room: 4,
		most: map[due.Home]int{}, going: map[due.Home]int{}}
	w.logger = slog.New(slog.NewTextHandler(&w.log, nil))
	w.answerWith(due.Done)
	w.lead()
	return w
}

// lead starts a Keeper for a server that begins to lead in a new term.
func (w *world) lead() {
	w.mu.Lock()
	w.leads, w.term = true, w.term+1
	k := due.NewKeeper(due.Options{Logger: w.logger, AfterFunc: w.afterFunc, MaxJobs: w.limit})
	w.keeper = k
	g := server{w, w.term}
	w.mu.Unlock()
	w.t.Cleanup(k.Close)
	k.Deliver(due.KindJob, w)
	k.Attach(g)
}

func (w *world) afterFunc(d time.Duration, f func()) (stop func() bool) {
	w.clock.Lock()
	defer w.clock.Unlock()
	t := &timer{at: w.now + uint64(d.Milliseconds()), f: f}
	w.timers[t] = true
	return func() bool {
		w.clock.Lock()
		defer w.clock.Unlock()
		found := w.timers[t]
		delete(w.timers, t)
		return found
	}
}

// advance moves the clock, and calls the timers that end.
func (w *world) advance(d time.Duration) {
	w.clock.Lock()
	w.now += uint64(d.Milliseconds())
	var ended []func()
	for t := range w.timers {
		if t.at <= w.now {
			ended = append(ended, t.f)
			delete(w.timers, t)
		}
	}
	w.clock.Unlock()
	for _, f := range ended {
		f()
	}
}

// idle waits until the Keeper has nothing to do, except for the given number of ticks under way.
func (w *world) idle(underWay int) {
	w.t.Helper()
	testutil.Eventually(w.t, func() error {
		if !w.keeper.Idle(underWay) {
			return errors.New("the Keeper is not idle")
		}
		return nil
	})
}

// called waits until n deliveries wait for an answer, and the Keeper does nothing else.
func (w *world) called(n int) {
	w.t.Helper()
	testutil.Eventually(w.t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		calls := 0
		for _, of := range w.going {
			calls += of
		}
		if calls != n {
			return fmt.Errorf("%d deliveries wait for an answer, want %d", calls, n)
		}
		return nil
	})
	w.idle(n)
}

// pauses waits until the given number of ticks were delivered since the last call of fired, and the Keeper pauses
// because the last tick got no answer. The Keeper must have no other timer.
func (w *world) pauses(ticks int) {
	w.t.Helper()
	testutil.Eventually(w.t, func() error {
		w.mu.Lock()
		delivered := len(w.ticks)
		w.mu.Unlock()
		w.clock.Lock()
		timers := len(w.timers)
		w.clock.Unlock()
		if delivered != ticks || timers != 1 || !w.keeper.Idle(1) {
			return fmt.Errorf("%d ticks were delivered, want %d; %d timers", delivered, ticks, timers)
		}
		return nil
	})
}

// step advances the clock and waits until the Keeper is idle.
func (w *world) step(d time.Duration) {
	w.t.Helper()
	w.idle(0)
	w.advance(d)
	w.idle(0)
}

// server is the group from the view of the server that leads in the given term.
type server struct {
	*world
	term uint64
}

func (s server) Leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leads && s.world.term == s.term
}

func (w *world) Term() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.term
}

func (w *world) Now() uint64 {
	w.clock.Lock()
	defer w.clock.Unlock()
	return w.now
}

func (w *world) Machine() *kv.Machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.reading; f != nil {
		w.reading = nil
		f()
	}
	return w.machine
}

func (w *world) Confirm(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alone {
		return fault.New(fault.Unavailable, "test", "no majority answers")
	}
	return nil
}

func (w *world) Commit(_ context.Context, r *command.Request) (kv.Result, error) {
	w.mu.Lock()
	stalled := w.stalled
	w.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return kv.Result{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	w.commits++
	if w.refuse != nil {
		if err := w.refuse(r); err != nil {
			return kv.Result{}, err
		}
	}
	return w.apply(r)
}

func (w *world) apply(r *command.Request) (kv.Result, error) {
	data, err := command.Append(nil, &command.Batch{Stamp: w.Now(), Requests: []command.Request{*r}})
	if err != nil {
		return kv.Result{}, err
	}
	w.index++
	out := w.machine.Apply([]kv.Entry{{Index: w.index, Term: w.term, Data: data}})[0]
	if out.Err != nil {
		return kv.Result{}, out.Err
	}
	if w.machine.DueChanged() {
		w.keeper.Update()
	}
	return out.Results[0], nil
}

// backup returns the records of a backup of the group.
func (w *world) backup() []command.Op {
	w.t.Helper()
	e, err := w.machine.Export()
	testutil.Must(w.t, err)
	defer e.Close()
	part, _, err := e.Next(1 << 20)
	testutil.Must(w.t, err)
	return part.Records
}

// restore replaces the contents of the group by those of a backup.
func (w *world) restore(backup []command.Op) {
	w.t.Helper()
	for _, r := range []command.Request{
		{Restore: &command.Restore{Step: command.StepBegin}},
		{Restore: &command.Restore{Step: command.StepChunk}, Ops: backup},
		{Restore: &command.Restore{Step: command.StepCommit, Part: 1}},
	} {
		r.Kind, r.Restore.ID = command.KindRestore, 7
		res, err := w.Commit(context.Background(), &r)
		if err != nil || res.Outcome != kv.Applied {
			w.t.Fatal(res.Outcome, err)
		}
	}
}

// Room implements due.Deliverer.
func (w *world) Room(h due.Home) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.room > 0 && len(w.asked) < 10 {
		w.asked = append(w.asked, h)
	}
	return w.room
}

func (w *world) setRoom(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = n
}

// Deliver implements due.Deliverer.
func (w *world) Deliver(ctx context.Context, t *due.Tick) (due.Result, error) {
	w.mu.Lock()
	if now := w.Now(); t.Due > now {
		w.t.Errorf("tick %d of %s is %d ms early", t.Number, t.Name, t.Due-now)
	}
	w.ticks, w.last = append(w.ticks, *t), ctx
	w.going[t.Home]++
	w.most[t.Home] = max(w.most[t.Home], w.going[t.Home])
	answer := w.answer
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.going[t.Home]--
	}()
	return answer(t)
}

func (w *world) answerFunc(f func(t *due.Tick) (due.Result, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

func (w *world) answerWith(r due.Result) {
	w.answerFunc(func(*due.Tick) (due.Result, error) {
		if r == due.Failed {
			return r, errors.New("no luck")
		}
		return r, nil
	})
}

// hold makes each delivery wait for its result from the returned channel.
func (w *world) hold() chan due.Result {
	results := make(chan due.Result)
	w.answerFunc(func(*due.Tick) (due.Result, error) { return <-results, nil })
	return results
}

// fired returns the names and numbers of the ticks since the last call.
func (w *world) fired() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, t := range w.ticks {
		out = append(out, fmt.Sprintf("%s#%d/%d", t.Name, t.Number, t.Attempt))
	}
	w.ticks = nil
	return out
}

func (w *world) wantFired(want ...string) {
	w.t.Helper()
	if got := w.fired(); !slices.Equal(got, want) {
		w.t.Errorf("fired %s, want %s", got, want)
	}
}

func (w *world) put(p due.Put) uint64 {
	w.t.Helper()
	revision, err := w.keeper.Put(w.t.Context(), &p)
	testutil.Must(w.t, err)
	return revision
}

// job returns a Put of a job that is due once, after the given time.
func job(name string, after time.Duration) due.Put {
	return due.Put{Home: home("shop"), Name: name, Due: after.String()}
}

// every returns a Put of a job that is due each second, for the first time after one second.
func every(name string) due.Put {
	return due.Put{Home: home("shop"), Name: name, Spec: due.Spec{Schedule: "@every 1s"}}
}

func (w *world) get(name string) (due.Work, bool) {
	w.t.Helper()
	found, ok, err := due.Read(w.machine, home("shop"), name)
	testutil.Must(w.t, err)
	return found, ok
}

// indexProblem compares the index with the states. It returns what differs, or "".
func indexProblem(t testing.TB, m *kv.Machine) string {
	t.Helper()
	index, states := map[string]bool{}, map[string]bool{}
	for after := ""; ; {
		found, more, err := m.List(kv.DueStore, "", after, 1000, 0)
		testutil.Must(t, err)
		for _, one := range found {
			after = one.Key
			h, _ := due.HomeOf(one.Key)
			rest, isState := strings.CutPrefix(one.Key, h.States())
			table := one.Key[len(h.States())-1]
			switch {
			case isState:
				w, ok, err := due.Read(m, h, rest)
				testutil.Must(t, err)
				if !ok {
					return "a state without spec: " + rest
				}
				states[due.IndexKey(h, w.State.At, rest)] = true
			case table == 'a':
				index[one.Key] = true
			}
		}
		if !more {
			break
		}
	}
	for key := range index {
		if !states[key] {
			return fmt.Sprintf("an index record without state: %q", key)
		}
	}
	for key := range states {
		if !index[key] {
			return fmt.Sprintf("a state without index record: %q", key)
		}
	}
	return ""
}

func (w *world) checkIndex() {
	w.t.Helper()
	if why := indexProblem(w.t, w.machine); why != "" {
		w.t.Fatal(why)
	}
}
