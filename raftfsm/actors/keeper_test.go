package actors_test

import (
	"context"
	"fmt"
	"log/slog"
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

// world is a group with one replica: what it commits is applied at once.
type world struct {
	t       testing.TB
	machine *kv.Machine

	mu     sync.Mutex
	keeper *actors.Keeper
	leads  bool
	term   uint64
	index  uint64
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

// lead replaces the leader: the next one has a Keeper of its own.
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
	defer w.mu.Unlock()
	if !w.leads {
		return kv.Result{}, raftlog.Position{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	data, err := command.Append(nil, &command.Batch{Stamp: 1, Requests: []command.Request{*r}})
	testutil.Must(w.t, err)
	w.index++
	out := w.machine.Apply([]kv.Entry{{Index: w.index, Term: w.term, Data: data}})[0]
	testutil.Must(w.t, out.Err)
	return out.Results[0], raftlog.Position{Term: w.term, Index: w.index}, nil
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

// inWorld runs a test with a clock of its own.
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
		for range 10 { // b renews, a does not
			<-time.After(actors.RenewEvery)
			synctest.Wait()
			testutil.Must(t, w.keeper.Renew(t.Context(), "b", 0))
		}
		if err := w.keeper.Renew(t.Context(), "a", 1); !fault.Is(err, fault.NotFound) {
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
			testutil.Must(t, w.keeper.Renew(t.Context(), "a", 0))
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
			testutil.Must(t, w.keeper.Renew(t.Context(), "a", 0))
		}
		w.lead()
		_, _, _ = w.keeper.Hosts("")
		<-time.After(actors.Takeover + time.Millisecond)
		synctest.Wait()
		if err := w.keeper.Renew(t.Context(), "a", 0); !fault.Is(err, fault.NotFound) {
			t.Errorf("the session lasts longer than %v: %v", actors.Takeover, err)
		}
		w.register("a")
		<-time.After(actors.Patience - time.Millisecond)
		w.depose()
		<-time.After(time.Hour) // without a leader nothing ends
		w.lead()
		testutil.Must(t, w.keeper.Renew(t.Context(), "a", 0))
	})
}

// A renewal is answered only by a server that still leads: otherwise the next leader may have ended the session.
func TestRenew_DeposedLeaderDoesNotAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.register("a")
		w.depose()
		if err := w.keeper.Renew(t.Context(), "a", 0); !fault.Is(err, fault.NotLeader) {
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

func TestLocate_PrefersNodeThenFewestActors(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		if _, err := w.keeper.Locate(t.Context(), actor("1"), ""); !fault.Is(err, fault.NotFound) {
			t.Errorf("without a host: %v", err)
		}
		w.register("a")
		w.register("b")
		if h, err := w.keeper.Locate(t.Context(), actor("1"), "node-b"); err != nil || h.ID != "b" {
			t.Errorf("%+v, %v", h, err)
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

// A leader that stops while it removes records leaves the rest to the next one.
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
		testutil.Must(t, w.keeper.Renew(t.Context(), "b", 0))
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
