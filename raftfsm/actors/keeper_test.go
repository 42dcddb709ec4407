package actors_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

const scope = "default/s\x00app"

// world is a Raft group with one replica. A committed request is applied at once.
type world struct {
	t       testing.TB
	machine *kv.Machine

	mu     sync.Mutex
	keeper *actors.Keeper
	leads  bool
	term   uint64
	index  uint64
	delay  bool               // the next proposal gets no answer, and is applied with the following proposal
	late   []*command.Request // proposals that were not applied yet
	before func()             // called once, before the next proposal; nil = nothing is called
}

func newWorld(t testing.TB) *world {
	t.Helper()
	m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
	testutil.Must(t, err)
	w := &world{t: t, machine: m}
	w.lead()
	return w
}

func (w *world) close() {
	w.keeper.Close()
	testutil.Must(w.t, w.machine.Close())
}

// lead begins a new term, in which the leader has a new Keeper.
func (w *world) lead() {
	if w.keeper != nil {
		w.keeper.Close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leads, w.term = true, w.term+1
	w.keeper = actors.NewKeeper(actors.Patience, slog.New(slog.DiscardHandler))
	w.keeper.Attach(w)
}

func (w *world) depose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leads = false
}

func (w *world) Leading() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leads
}

func (w *world) Term() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.term
}

func (w *world) Machine() *kv.Machine { return w.machine }

func (w *world) Confirm(context.Context) (raftlog.Position, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return raftlog.Position{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	return raftlog.Position{Term: w.term, Index: w.index}, nil
}

func (w *world) Commit(_ context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	w.mu.Lock()
	before := w.before
	w.before = nil
	w.mu.Unlock()
	if before != nil {
		before()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return kv.Result{}, raftlog.Position{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	w.late = append(w.late, r)
	if w.delay {
		w.delay = false
		return kv.Result{}, raftlog.Position{}, fault.New(fault.Indeterminate, "test", "not applied in time")
	}
	var result kv.Result
	for _, r := range w.late {
		data, err := command.Append(nil, &command.Batch{Stamp: 1, Requests: []command.Request{*r}})
		testutil.Must(w.t, err)
		w.index++
		out := w.machine.Apply([]kv.Entry{{Index: w.index, Term: w.term, Data: data}})[0]
		testutil.Must(w.t, out.Err)
		result = out.Results[0]
	}
	w.late = nil
	return result, raftlog.Position{Term: w.term, Index: w.index}, nil
}

func host(id string) actors.Host {
	return actors.Host{ID: id, Scope: scope, Node: "node-" + id, Server: "server-" + id, App: "app",
		Types: []string{"T"}}
}

func actor(id string) actors.Actor { return actors.Actor{Scope: scope, Type: "T", ID: id} }

func (w *world) register(id string) uint64 {
	w.t.Helper()
	revision, err := w.keeper.Register(w.t.Context(), host(id))
	testutil.Must(w.t, err)
	return revision
}

// renew renews the session of a host that reports count actors, and returns the advice.
func (w *world) renew(id string, count int) actors.Advice {
	w.t.Helper()
	p, err := w.keeper.Renew(w.t.Context(), id, count, true)
	testutil.Must(w.t, err)
	return p
}

func (w *world) activate(hostID, actorID string) actors.Placed {
	w.t.Helper()
	p, err := w.keeper.Activate(w.t.Context(), hostID, actor(actorID))
	testutil.Must(w.t, err)
	return p
}

// write writes the state of an actor. checks are the conditions; without them the write is not fenced.
func (w *world) write(id, value string, checks []command.Op) kv.Outcome {
	w.t.Helper()
	res, _, err := w.Commit(w.t.Context(), &command.Request{Kind: command.KindWrite, Ops: append(checks,
		command.Op{Kind: command.OpSet, Store: "default/s", Key: "app||T||" + id, Value: []byte(value)})})
	testutil.Must(w.t, err)
	return res.Outcome
}

func (w *world) state(id string) string {
	w.t.Helper()
	v, err := w.machine.Get("default/s", "app||T||"+id, 0)
	testutil.Must(w.t, err)
	return string(v.Value)
}

// inWorld runs a test with a new world and a simulated clock.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		test(t, w)
	})
}

func TestActivate_FirstHostOwnsActor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.register("b")
		first := w.activate("a", "1")
		if first.Owner.ID != "a" || first.Epoch == 0 {
			t.Fatalf("%+v", first)
		}
		if again := w.activate("a", "1"); again.Epoch != first.Epoch {
			t.Errorf("a second request of the owner got epoch %d, want %d", again.Epoch, first.Epoch)
		}
		if other := w.activate("b", "1"); other.Owner.ID != "a" || other.Epoch != first.Epoch {
			t.Errorf("another host got %+v", other)
		}
	})
}

func TestSession_EndsWithoutRenewal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.register("b")
		first := w.activate("a", "1")
		for range 10 { // host b renews its session, and host a does not
			<-time.After(actors.RenewEvery)
			synctest.Wait()
			w.renew("b", 0)
		}
		if _, err := w.keeper.Renew(t.Context(), "a", 1, true); !fault.Is(err, fault.NotFound) {
			t.Errorf("a renewal after the end: %v", err)
		}
		next := w.activate("b", "1")
		if next.Owner.ID != "b" || next.Epoch <= first.Epoch {
			t.Errorf("after %+v came %+v", first, next)
		}
	})
}

func TestSession_LastsWhileRenewed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		for range 50 {
			<-time.After(actors.Patience - time.Millisecond)
			synctest.Wait()
			w.renew("a", 0)
		}
	})
}

// A new leader waits for Takeover from its start, so that a session never ends before the lease of its host.
func TestSession_NewLeaderCountsAfresh(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		for range 5 {
			<-time.After(actors.Patience - time.Millisecond)
			synctest.Wait()
			w.lead()
			_, _, _ = w.keeper.Hosts("") // reads the sessions
			<-time.After(actors.Takeover - time.Millisecond)
			synctest.Wait()
			w.renew("a", 0)
		}
		w.lead()
		_, _, _ = w.keeper.Hosts("")
		<-time.After(actors.Takeover + time.Millisecond)
		synctest.Wait()
		if _, err := w.keeper.Renew(t.Context(), "a", 0, true); !fault.Is(err, fault.NotFound) {
			t.Errorf("the session lasts longer than %v: %v", actors.Takeover, err)
		}
		w.register("a")
		<-time.After(actors.Patience - time.Millisecond)
		w.depose()
		<-time.After(time.Hour) // without a leader no session ends
		w.lead()
		w.renew("a", 0)
	})
}

// Only a server that still leads answers a renewal. Otherwise the next leader may have ended the session.
func TestRenew_DeposedLeaderDoesNotAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.depose()
		if _, err := w.keeper.Renew(t.Context(), "a", 0, true); !fault.Is(err, fault.NotLeader) {
			t.Errorf("a deposed leader answers %v", err)
		}
	})
}

func TestCheck_WriteOfFormerOwnerIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		revision := w.register("a")
		old := w.activate("a", "1")
		fenced := actors.Check(actor("1"), old.Epoch, "a", revision)
		if got := w.write("1", "a", fenced); got != kv.Applied {
			t.Fatalf("a write of the owner is %s", got)
		}
		<-time.After(2 * actors.Patience) // the host is paused
		synctest.Wait()
		if got := w.write("1", "late", fenced); got != kv.Conflict {
			t.Errorf("a write after the end of the session is %s", got)
		}
		second := w.register("b")
		next := w.activate("b", "1")
		if got := w.write("1", "b", actors.Check(actor("1"), next.Epoch, "b", second)); got != kv.Applied {
			t.Errorf("a write of the new owner is %s", got)
		}
		if got := w.write("1", "late", fenced); got != kv.Conflict || w.state("1") != "b" {
			t.Errorf("a write of the former owner is %s, and the state is %q", got, w.state("1"))
		}
		// The hazard: without the check the paused host overwrites the state.
		if got := w.write("1", "late", nil); got != kv.Applied || w.state("1") != "late" {
			t.Errorf("a write without a check is %s, and the state is %q", got, w.state("1"))
		}
	})
}

func TestLocate_TakesFewestActorsThenNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		if _, err := w.keeper.Locate(t.Context(), actor("1"), ""); !fault.Is(err, fault.NotFound) {
			t.Errorf("without a host: %v", err)
		}
		w.register("a")
		w.register("b")
		if h, err := w.keeper.Locate(t.Context(), actor("1"), "node-b"); err != nil || h.ID != "b" {
			t.Errorf("of two hosts without actors: %+v, %v", h, err)
		}
		w.renew("a", 3)
		w.renew("b", 4)
		if h, err := w.keeper.Locate(t.Context(), actor("1"), "node-b"); err != nil || h.ID != "a" {
			t.Errorf("the host with more actors gets another one, because it is that of the caller: %+v, %v", h, err)
		}
		got := map[string]int{}
		for i := range 10 {
			h, err := w.keeper.Locate(t.Context(), actor(fmt.Sprint(i)), "elsewhere")
			testutil.Must(t, err)
			got[h.ID]++
		}
		if got["a"] != 5 || got["b"] != 5 {
			t.Errorf("actors are spread as %v", got)
		}
		draining := host("a")
		draining.Draining = true
		_, err := w.keeper.Register(t.Context(), draining)
		testutil.Must(t, err)
		if h, err := w.keeper.Locate(t.Context(), actor("x"), "node-a"); err != nil || h.ID != "b" {
			t.Errorf("a draining host gets actors: %+v, %v", h, err)
		}
	})
}

// spread plays hosts that follow the advice of the leader for the given number of seconds. counts has the number of
// actors of each host, and is updated. The result has each advice as a text.
func (w *world) spread(counts map[string]int, seconds int) (moves []string) {
	for range 5 * seconds {
		for _, id := range slices.Sorted(maps.Keys(counts)) {
			if a := w.renew(id, counts[id]); a.Give > 0 {
				counts[id] -= a.Give
				counts[a.To.ID] += a.Give
				moves = append(moves, fmt.Sprintf("%s %d %s", id, a.Give, a.To.ID))
			}
		}
		<-time.After(actors.RenewEvery)
	}
	return moves
}

func TestRenew_AdvisesUntilHostsDifferByATenth(t *testing.T) {
	for name, c := range map[string]struct {
		counts map[string]int
		within int // seconds
	}{
		"a host joins":            {map[string]int{"a": 1000, "b": 1000, "c": 0}, 20},
		"two hosts join":          {map[string]int{"a": 500, "b": 0, "c": 0}, 10},
		"one host has more":       {map[string]int{"a": 130, "b": 100, "c": 100}, 5},
		"few actors":              {map[string]int{"a": 4, "b": 0, "c": 0}, 5},
		"a remainder":             {map[string]int{"a": 10, "b": 10, "c": 8}, 3},
		"one actor":               {map[string]int{"a": 1, "b": 0, "c": 0}, 1},
		"hosts differ by a tenth": {map[string]int{"a": 100, "b": 90, "c": 95}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				for id := range c.counts {
					w.register(id)
				}
				all := slices.Max(slices.Collect(maps.Values(c.counts)))
				moves := w.spread(c.counts, c.within)
				counts := slices.Sorted(maps.Values(c.counts))
				least, most := counts[0], counts[len(counts)-1]
				if most-least > max(1, most/10) {
					t.Errorf("after %d s the hosts have %v", c.within, c.counts)
				}
				if (all == 1 || all == 100) && len(moves) > 0 {
					t.Errorf("actors move although the hosts are level: %q", moves)
				}
				if again := w.spread(c.counts, 5); len(again) > 0 {
					t.Errorf("the hosts are level and actors move: %q", again)
				}
				for _, m := range moves {
					var from, to string
					var n int
					if _, err := fmt.Sscanf(m, "%s %d %s", &from, &n, &to); err != nil || n > 100 {
						t.Errorf("a host gives too many actors at once: %s", m)
					}
				}
			})
		})
	}
}

func TestRenew_AdvisesOnlyHostsThatTakePart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, h := range []actors.Host{host("a"), {ID: "other type", Scope: scope, Types: []string{"U"}},
			{ID: "other scope", Scope: "x", Types: []string{"T"}},
			{ID: "drains", Scope: scope, Types: []string{"T"}, Draining: true}} {
			_, err := w.keeper.Register(t.Context(), h)
			testutil.Must(t, err)
			w.renew(h.ID, 0)
		}
		w.register("unknown count")
		if a := w.renew("a", 100); a.Give > 0 {
			t.Errorf("advice to give %d actors to %q", a.Give, a.To.ID)
		}
		w.renew("unknown count", 0)
		a, err := w.keeper.Renew(t.Context(), "a", 100, false)
		if testutil.Must(t, err); a.Give > 0 {
			t.Error("a host that gives none gets advice")
		}
		if a := w.renew("a", 100); a.Give != 50 || a.To.ID != "unknown count" {
			t.Errorf("advice to give %d actors to %q", a.Give, a.To.ID)
		}
	})
}

// After an operator has moved actors, the leader does not spread actors until a host joins or leaves, for at most ten
// minutes.
func TestTransfer_OfAnOperatorStays(t *testing.T) {
	for name, end := range map[string]func(w *world, counts map[string]int){
		"a host joins": func(w *world, counts map[string]int) {
			w.register("d")
			counts["d"] = 0
		},
		"a host leaves": func(w *world, counts map[string]int) {
			testutil.Must(w.t, w.keeper.Leave(w.t.Context(), "c"))
			delete(counts, "c")
		},
		"time passes": func(w *world, counts map[string]int) { w.spread(maps.Clone(counts), 600) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.register("a")
				w.register("b")
				w.register("c")
				p := w.activate("b", "1")
				owned := []actors.Owned{{Actor: actor("1"), Epoch: p.Epoch}}
				testutil.Must(t, w.keeper.Transfer(t.Context(), owned, "a", true))
				counts := map[string]int{"a": 4, "b": 0, "c": 0}
				if moves := w.spread(counts, 60); len(moves) > 0 {
					t.Errorf("the operator has moved an actor, and the leader moves %q", moves)
				}
				end(w, counts)
				if moves := w.spread(counts, 5); len(moves) == 0 {
					t.Error("actors are not spread again")
				}
			})
		})
	}
}

// The host that gets an actor is informed, so that it counts the actor.
func TestTransfer_IsReportedToTheNewOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.register("b")
		var owned []actors.Owned
		for i := range 600 {
			id := fmt.Sprint(i)
			owned = append(owned, actors.Owned{Actor: actor(id), Epoch: w.activate("a", id).Epoch})
		}
		testutil.Must(t, w.keeper.Transfer(t.Context(), owned, "b", false))
		var taken []actors.Actor
		for range 4 {
			taken = append(taken, w.renew("b", len(taken)).Take...)
		}
		if len(taken) != 600 || taken[0] != actor("0") || taken[599] != actor("599") {
			t.Errorf("%d of 600 actors are reported", len(taken))
		}
		if a := w.renew("a", 0); len(a.Take) > 0 {
			t.Errorf("%d actors are reported to the wrong host", len(a.Take))
		}
	})
}

// The session of the new owner ends after the leader has checked it and before the transfer is applied.
func TestTransfer_FailsIfTheSessionEndsMeanwhile(t *testing.T) {
	for _, count := range []int{1, 3} {
		inWorld(t, func(t *testing.T, w *world) {
			w.register("a")
			w.register("b")
			var owned []actors.Owned
			for i := range count {
				id := fmt.Sprint(i)
				owned = append(owned, actors.Owned{Actor: actor(id), Epoch: w.activate("a", id).Epoch})
			}
			w.before = func() { testutil.Must(t, w.keeper.Leave(t.Context(), "b")) }
			if err := w.keeper.Transfer(t.Context(), owned, "b", false); !fault.Is(err, fault.NotFound) {
				t.Errorf("%d actors: %v", count, err)
			}
			synctest.Wait()
		})
	}
}

// A transfer skips actors whose records have other epochs. The new owner does not learn of them.
func TestTransfer_ReportsNoSkippedActors(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.register("b")
		one, two := w.activate("a", "1"), w.activate("a", "2")
		testutil.Must(t, w.keeper.Transfer(t.Context(), []actors.Owned{{Actor: actor("1"), Epoch: one.Epoch + 100},
			{Actor: actor("2"), Epoch: two.Epoch}}, "b", false))
		testutil.Must(t, w.keeper.Transfer(t.Context(), []actors.Owned{{Actor: actor("1"), Epoch: one.Epoch + 100}},
			"b", false))
		if taken := w.renew("b", 0).Take; !slices.Equal(taken, []actors.Actor{actor("2")}) {
			t.Errorf("the new owner has got %v", taken)
		}
	})
}

// The first attempt of a transfer gets no answer, and is applied. The second attempt changes nothing, but the new owner
// still learns of the actors.
func TestTransfer_RepeatedAfterAnUnknownOutcomeIsReported(t *testing.T) {
	for _, count := range []int{1, 2} {
		inWorld(t, func(t *testing.T, w *world) {
			w.register("a")
			w.register("b")
			var owned []actors.Owned
			var want []actors.Actor
			for i := range count {
				id := fmt.Sprint(i)
				owned = append(owned, actors.Owned{Actor: actor(id), Epoch: w.activate("a", id).Epoch})
				want = append(want, actor(id))
			}
			w.delay = true
			if err := w.keeper.Transfer(t.Context(), owned, "b", false); !fault.Is(err, fault.Indeterminate) {
				t.Errorf("the first attempt: %v", err)
			}
			synctest.Wait() // the outcome is known now
			testutil.Must(t, w.keeper.Transfer(t.Context(), owned, "b", false))
			if taken := w.renew("b", 0).Take; !slices.Equal(taken, want) {
				t.Errorf("the new owner has got %v, want %v", taken, want)
			}
		})
	}
}

func TestLeave_FreesActorsAndRemovesRecords(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		for i := range 1200 { // more than one page
			w.activate("a", fmt.Sprint(i))
		}
		testutil.Must(t, w.keeper.Leave(t.Context(), "a"))
		synctest.Wait()
		found, _, err := w.machine.List(kv.LockStore, "", "", 10, 0)
		testutil.Must(t, err)
		if len(found) > 0 {
			t.Errorf("%d records are left, such as %q", len(found), found[0].Key)
		}
	})
}

// A leader stops while it removes records. The next leader removes the rest.
func TestLeave_NextLeaderRemovesTheRest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.activate("a", "1")
		w.register("b")
		// The session ends, and the leader stops before it removes the activation.
		res, _, err := w.Commit(t.Context(), actors.EndForTest(host("a"), 1))
		testutil.Must(t, err)
		if res.Outcome != kv.Applied {
			t.Fatal(res.Outcome)
		}
		w.lead()
		w.renew("b", 0)
		synctest.Wait()
		found, _, err := w.machine.List(kv.LockStore, actors.Activations, "", 10, 0)
		testutil.Must(t, err)
		if len(found) > 0 {
			t.Errorf("%d activations are left", len(found))
		}
	})
}

func TestRelease_LeavesOtherEpochs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		one, two := w.activate("a", "1"), w.activate("a", "2")
		testutil.Must(t, w.keeper.Release(t.Context(), []actors.Owned{{Actor: actor("1"), Epoch: one.Epoch},
			{Actor: actor("2"), Epoch: two.Epoch + 100}}))
		if again := w.activate("a", "1"); again.Epoch == one.Epoch {
			t.Error("the first actor was not released")
		}
		if again := w.activate("a", "2"); again.Epoch != two.Epoch {
			t.Error("the second actor was released with another epoch")
		}
	})
}

func TestRegister_EndedSessionIsNotBegunAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		first := w.register("a")
		if again := w.register("a"); again != first {
			t.Errorf("a repeated registration has revision %d, want %d", again, first)
		}
		w.activate("a", "1")
		testutil.Must(t, w.keeper.Leave(t.Context(), "a"))
		if _, err := w.keeper.Activate(t.Context(), "a", actor("1")); !fault.Is(err, fault.NotFound) {
			t.Errorf("an ended session activates: %v", err)
		}
		synctest.Wait() // no record of the session is left
		drains := host("a")
		drains.Draining, drains.Revision = true, first
		if _, err := w.keeper.Register(t.Context(), drains); !fault.Is(err, fault.NotFound) {
			t.Errorf("an ended session is described anew: %v", err)
		}
	})
}

// A registration is applied after its caller got an unknown outcome. The leader then knows the session, and ends it if
// the host does not come back.
func TestRegister_AppliedLateIsKnown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("other")
		for _, id := range []string{"back", "gone"} {
			w.mu.Lock()
			w.delay = true
			w.mu.Unlock()
			if _, err := w.keeper.Register(t.Context(), host(id)); !fault.Is(err, fault.Indeterminate) {
				t.Errorf("registering %s: %v", id, err)
			}
			w.renew("other", 0) // reads the sessions before the registration is applied
			synctest.Wait()
		}
		w.register("back")
		for range 30 {
			<-time.After(actors.Patience / 10)
			w.renew("back", 0)
			w.renew("other", 0)
		}
		hosts, _, err := w.keeper.Hosts(scope)
		testutil.Must(t, err)
		found, _, err := w.machine.List(kv.LockStore, actors.Sessions, "", 10, 0)
		testutil.Must(t, err)
		if len(hosts) != 2 || len(found) != 2 {
			t.Errorf("the leader knows %v, and %d sessions are stored; want 2", hosts, len(found))
		}
	})
}

func TestParseKey_ReversesKey(t *testing.T) {
	a := actors.Actor{Scope: "ns/s\x00app", Type: "T", ID: "a||b c"}
	if got, ok := actors.ParseKey(a.Key()); !ok || got != a {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, bad := range []string{"", "a", "ax\x00y", "hx\x00y\x00z"} {
		if got, ok := actors.ParseKey(bad); ok {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

// While a host replaces its description, the leader reads the sessions again, because another proposal got no answer.
// The leader then knows the new description.
func TestRegister_DescriptionCountsAfterSessionsWereReadAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.before = func() {
			w.mu.Lock()
			w.delay = true
			w.mu.Unlock()
			_, err := w.keeper.Activate(t.Context(), "a", actor("1"))
			if !fault.Is(err, fault.Indeterminate) {
				t.Errorf("an activation without an answer: %v", err)
			}
			synctest.Wait()
			if _, _, err := w.keeper.Hosts(""); err != nil {
				t.Error(err)
			}
		}
		described := host("a")
		described.Draining = true
		_, err := w.keeper.Register(t.Context(), described)
		testutil.Must(t, err)
		hosts, _, err := w.keeper.Hosts("")
		testutil.Must(t, err)
		if len(hosts) != 1 || !hosts[0].Draining {
			t.Errorf("the leader knows the hosts %+v, want one that drains", hosts)
		}
	})
}
