package locks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
)

// world is a group with one replica: what it commits is applied at once.
type world struct {
	t       *testing.T
	machine *kv.Machine

	mu     sync.Mutex
	keeper *locks.Keeper
	leads  bool
	term   uint64
	index  uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	w := &world{t: t, machine: m, leads: true, term: 1}
	w.lead()
	return w
}

// lead starts a Keeper for a server that begins to lead in a new term.
func (w *world) lead() {
	w.mu.Lock()
	w.leads, w.term = true, w.term+1
	w.keeper = locks.NewKeeper(slog.New(slog.DiscardHandler))
	k := w.keeper
	w.mu.Unlock()
	w.t.Cleanup(k.Close)
	k.Attach(w)
}

func (w *world) depose() {
	w.mu.Lock()
	w.leads = false
	k := w.keeper
	w.mu.Unlock()
	k.Update()
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

func (w *world) Commit(_ context.Context, r *command.Request) (kv.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return kv.Result{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	return w.apply(r)
}

func (w *world) apply(r *command.Request) (kv.Result, error) {
	data, err := command.Append(nil, &command.Batch{Stamp: 1, Requests: []command.Request{*r}})
	if err != nil {
		return kv.Result{}, err
	}
	w.index++
	out := w.machine.Apply([]kv.Entry{{Index: w.index, Term: w.term, Data: data}})[0]
	if out.Err != nil {
		return kv.Result{}, out.Err
	}
	if w.machine.LocksChanged() {
		w.keeper.Update()
	}
	return out.Results[0], nil
}

func (w *world) commit(r *command.Request) kv.Result {
	w.t.Helper()
	res, err := w.Commit(w.t.Context(), r)
	testutil.Must(w.t, err)
	return res
}

// lock returns the lock; found is false if it has no owner.
func (w *world) lock(name string) (locks.Lock, bool) {
	w.t.Helper()
	values, err := w.machine.GetMany(kv.LockStore, locks.Keys(name), 0)
	testutil.Must(w.t, err)
	l, found, err := locks.Parse(values)
	testutil.Must(w.t, err)
	return l, found
}

func (w *world) acquire(name, owner string, expiry time.Duration) uint64 {
	w.t.Helper()
	res := w.commit(locks.Acquire(name, locks.Claim{Owner: owner, Expiry: expiry}))
	if res.Outcome != kv.Applied {
		w.t.Fatalf("%s did not get %s: %s", owner, name, res.Outcome)
	}
	return res.Revisions[0]
}

// ownedBy waits until owner has the lock, and returns it. The empty owner waits until it is free.
func (w *world) ownedBy(name, owner string) locks.Lock {
	w.t.Helper()
	var l locks.Lock
	testutil.Eventually(w.t, func() error {
		var found bool
		if l, found = w.lock(name); found != (owner != "") || l.Owner != owner {
			return fmt.Errorf("%s is owned by %q, want %q", name, l.Owner, owner)
		}
		return nil
	})
	return l
}

const hour = time.Hour

func TestKeeper_EndsLockAfterItsExpiry(t *testing.T) {
	w := newWorld(t)
	begin := time.Now()
	w.acquire("a", "x", 50*time.Millisecond)
	w.ownedBy("a", "")
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("a lock of 50 ms ended after %s", took)
	}
}

func TestKeeper_RenewalStartsExpiryAnew(t *testing.T) {
	w := newWorld(t)
	c := locks.Claim{Owner: "x", Expiry: 60 * time.Millisecond}
	token := w.acquire("a", "x", c.Expiry)
	for range 5 {
		l, found := w.lock("a")
		if !found || l.Token != token {
			t.Skip("the machine is too slow to renew in time")
		}
		renewed := time.Now()
		if w.commit(locks.Renew("a", l, c)).Outcome != kv.Applied {
			t.Skip("the machine is too slow to renew in time")
		}
		for time.Since(renewed) < c.Expiry-20*time.Millisecond {
			if l, found := w.lock("a"); !found || l.Token != token {
				t.Fatalf("the lock ended %s after a renewal for %s", time.Since(renewed), c.Expiry)
			}
		}
	}
	w.ownedBy("a", "")
}

// An expiry that is proposed after a renewal has no effect: it names the renewal that it has counted from.
func TestKeeper_LateExpiryDoesNotEndRenewedLock(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", hour)
	before, _ := w.lock("a")
	w.commit(locks.Renew("a", before, locks.Claim{Owner: "x", Expiry: hour}))
	r := locks.Expire("a", before)
	if res := w.commit(r); res.Outcome != kv.Conflict {
		t.Errorf("the outcome is %s, want %s", res.Outcome, kv.Conflict)
	}
	if l, found := w.lock("a"); !found || l.Token != token {
		t.Error("a late expiry has ended a renewed lock")
	}
}

func TestKeeper_NewLeaderCountsWholeExpiry(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", 100*time.Millisecond)
	testutil.Eventually(t, func() error { // most of the expiry passes under the first leader
		if left := w.keeper.Remaining("a", token); left == 0 || left > 40*time.Millisecond {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	w.depose()
	w.lead()
	begin := time.Now()
	w.ownedBy("a", "")
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("the second leader has ended a lock of 100 ms after %s", took)
	}
}

func TestKeeper_TokensGrow(t *testing.T) {
	w := newWorld(t)
	last := uint64(0)
	for i := range 20 {
		token := w.acquire("a", fmt.Sprint(i), hour)
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		if released, err := w.keeper.Release(t.Context(), "a", token); err != nil || !released {
			t.Fatalf("Release = %t, %v", released, err)
		}
	}
}

func TestRelease_OfAnotherTokenChangesNothing(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", hour)
	if released, err := w.keeper.Release(t.Context(), "a", token-1); err != nil || released {
		t.Errorf("Release = %t, %v", released, err)
	}
	if l, _ := w.lock("a"); l.Token != token {
		t.Error("the lock was released with another token")
	}
}

// wait calls Wait in a goroutine, and returns when the call is in the queue.
func (w *world) wait(ctx context.Context, name, owner string) <-chan error {
	w.t.Helper()
	done, before := make(chan error, 1), w.keeper.Waiting(name)
	go func() {
		_, err := w.keeper.Wait(ctx, name, locks.Claim{Owner: owner, Request: owner, Expiry: hour})
		done <- err
	}()
	testutil.Eventually(w.t, func() error {
		if w.keeper.Waiting(name) > before {
			return nil
		}
		return errors.New("not queued yet")
	})
	return done
}

func TestWait_GrantsInOrderOfArrival(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "first", hour)
	var done []<-chan error
	owners := []string{"b", "c", "d", "e"}
	for _, o := range owners {
		done = append(done, w.wait(t.Context(), "a", o))
	}
	for i, o := range owners {
		if released, err := w.keeper.Release(t.Context(), "a", token); err != nil || !released {
			t.Fatalf("Release = %t, %v", released, err)
		}
		testutil.Must(t, <-done[i])
		l, _ := w.lock("a")
		if l.Owner != o || l.Token <= token {
			t.Fatalf("the lock went to %q with token %d, want %q and more than %d", l.Owner, l.Token, o, token)
		}
		token = l.Token
	}
}

func TestWait_GetsFreeLockAtOnce(t *testing.T) {
	w := newWorld(t)
	token, err := w.keeper.Wait(t.Context(), "a", locks.Claim{Owner: "x", Expiry: hour})
	testutil.Must(t, err)
	if l, _ := w.lock("a"); l.Token != token || l.Owner != "x" {
		t.Errorf("%+v, want token %d", l, token)
	}
}

func TestWait_GetsLockThatExpires(t *testing.T) {
	w := newWorld(t)
	w.acquire("a", "x", 50*time.Millisecond)
	testutil.Must(t, <-w.wait(t.Context(), "a", "y"))
	w.ownedBy("a", "y")
}

func TestWait_CallerThatGivesUpNeverOwnsTheLock(t *testing.T) {
	w := newWorld(t)
	for range 50 {
		token := w.acquire("a", "x", hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := w.wait(ctx, "a", "y")
		go cancel()
		if released, err := w.keeper.Release(t.Context(), "a", token); err != nil || !released {
			t.Fatalf("Release = %t, %v", released, err)
		}
		if err := <-done; err == nil { // granted before it gave up
			l := w.ownedBy("a", "y")
			_, err := w.keeper.Release(t.Context(), "a", l.Token)
			testutil.Must(t, err)
		} else if !fault.Is(err, fault.Timeout) {
			t.Fatal(err)
		}
		w.ownedBy("a", "")
	}
}

func TestWait_EndsWhenLeadershipIsLost(t *testing.T) {
	w := newWorld(t)
	w.acquire("a", "x", hour)
	done := w.wait(t.Context(), "a", "y")
	w.depose()
	if err := <-done; !fault.Is(err, fault.NotLeader) {
		t.Errorf("Wait failed with %v, want %s", err, fault.NotLeader)
	}
}

// A call whose answer is lost with the leader finds at the next leader that it owns the lock.
func TestWait_RepeatedCallFindsItsGrant(t *testing.T) {
	w := newWorld(t)
	c := locks.Claim{Owner: "x", Request: "call-1", Expiry: hour}
	first, err := w.keeper.Wait(t.Context(), "a", c)
	testutil.Must(t, err)
	w.depose()
	w.lead()
	again, err := w.keeper.Wait(t.Context(), "a", c)
	testutil.Must(t, err)
	if again != first {
		t.Errorf("the repeated call has got token %d, the first one %d", again, first)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	c.Request = "call-2"
	if _, err := w.keeper.Wait(ctx, "a", c); !fault.Is(err, fault.Timeout) {
		t.Errorf("another call of the owner: %v, want %s", err, fault.Timeout)
	}
}

func TestCheck_WriteOfFormerOwnerIsRefused(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", 20*time.Millisecond)
	put := func(token uint64) kv.Outcome {
		return w.commit(&command.Request{Kind: command.KindCheckedWrite, Ops: []command.Op{locks.Check("a", token),
			{Kind: command.OpSet, Store: "default/s", Key: "k", Value: []byte(fmt.Sprint(token))}}}).Outcome
	}
	w.ownedBy("a", "")
	if got := put(token); got != kv.Conflict {
		t.Errorf("a write with the token of an expired lock is %s", got)
	}
	next := w.acquire("a", "y", hour)
	if got := put(next); got != kv.Applied {
		t.Errorf("a write of the owner is %s", got)
	}
	if got := put(token); got != kv.Conflict {
		t.Errorf("a write with the token of the former owner is %s", got)
	}
	v, err := w.machine.Get("default/s", "k", 0)
	testutil.Must(t, err)
	if string(v.Value) != fmt.Sprint(next) {
		t.Errorf("the value is %q", v.Value)
	}
}
