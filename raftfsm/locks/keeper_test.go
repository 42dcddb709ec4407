package locks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/records"
)

// world is a group with one replica, which applies every request at once.
type world struct {
	records.Group // has the methods that a Keeper of locks does not call

	t       *testing.T
	machine *kv.Machine
	limit   int // of locks; 0 = the default
	// before and after are called before and after a request is applied; nil = nothing is called.
	before, after func(*command.Request)

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
	w.keeper = locks.NewKeeper(locks.Options{Logger: slog.New(slog.DiscardHandler), MaxLocks: w.limit})
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

func (w *world) Machine() *kv.Machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine
}

func (w *world) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	if w.before != nil {
		w.before(r)
	}
	res, err := w.commitNow(r)
	if w.after != nil {
		w.after(r)
	}
	if err == nil && ctx.Err() != nil {
		return kv.Result{}, fault.New(fault.Indeterminate, "test", "the caller has not waited for the result")
	}
	return res, err
}

func (w *world) commitNow(r *command.Request) (kv.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return kv.Result{}, fault.New(fault.NotLeader, "test", "deposed")
	}
	return w.apply(r)
}

// gives reports whether a request makes owner the owner of a lock.
func gives(r *command.Request, owner string) bool {
	return r.Ops[0].Kind == command.OpSet && strings.Contains(string(r.Ops[0].Value), owner)
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

// ownedBy waits until owner has the lock, and returns the lock. If owner is empty, it waits until the lock is free.
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.acquire("a", "x", time.Minute)
		pass(time.Minute - time.Nanosecond)
		if l, found := w.lock("a"); !found {
			t.Errorf("a lock of a minute has ended too early: %+v", l)
		}
		pass(time.Nanosecond)
		if l, found := w.lock("a"); found {
			t.Errorf("a lock of a minute has not ended: %+v", l)
		}
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestKeeper_RenewalStartsExpiryAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := locks.Claim{Owner: "x", Expiry: time.Minute}
		token := w.acquire("a", "x", c.Expiry)
		for i := range 5 {
			l, found := w.lock("a")
			if !found || l.Token != token {
				t.Fatalf("the lock ended before renewal %d", i)
			}
			if got := w.commit(locks.Renew("a", l, c)).Outcome; got != kv.Applied {
				t.Fatalf("renewal %d is %s", i, got)
			}
			pass(c.Expiry - time.Nanosecond)
		}
		if l, found := w.lock("a"); !found || l.Token != token {
			t.Error("the lock ended less than its expiry after the last renewal")
		}
		pass(time.Nanosecond)
		if _, found := w.lock("a"); found {
			t.Error("the lock has not ended after its last renewal")
		}
	})
}

// A lock with a record that cannot be decoded does not expire. The other locks still expire.
func TestKeeper_DamagedLockDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"a", "b", "c"} {
			w.acquire(name, "x", time.Minute)
		}
		w.commit(&command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet, Store: kv.LockStore,
			Key: locks.Keys("b")[0], Value: []byte{200}}}})
		w.depose()
		w.lead()
		pass(time.Minute)
		for _, name := range []string{"a", "c"} {
			if l, found := w.lock(name); found {
				t.Errorf("lock %s has not ended: %+v", name, l)
			}
		}
	})
}

func TestRemaining_OfAServerThatDoesNotLeadIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := w.acquire("a", "x", time.Minute)
		synctest.Wait()
		if left, err := w.keeper.Remaining("a", token); err != nil || left != time.Minute {
			t.Errorf("the leader returned %s, %v", left, err)
		}
		w.depose()
		synctest.Wait()
		if left, err := w.keeper.Remaining("a", token); !fault.Is(err, fault.NotLeader) {
			t.Errorf("a former leader returned %s, %v", left, err)
		}
	})
}

// An expiry that is proposed after a renewal has no effect, because the proposal names the revision before the
// renewal.
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.acquire("a", "x", 100*time.Millisecond)
		<-time.After(70 * time.Millisecond) // most of the expiry passes under the first leader
		w.depose()
		w.lead()
		<-time.After(95 * time.Millisecond)
		w.ownedBy("a", "x")
		<-time.After(10 * time.Millisecond)
		w.ownedBy("a", "")
	})
}

// The limits protect the leader's memory. A caller that leaves makes room for another.
func TestKeeper_LimitsWaitingCallers(t *testing.T) {
	const ofLock, ofGroup = 64, 10_000
	w := newWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer leave()
	wait := func(ctx context.Context, name string) error {
		_, err := w.keeper.Wait(ctx, name, locks.Claim{Owner: "y", Expiry: hour})
		return err
	}
	fill := func(ctx context.Context, name string, n int) {
		for range n {
			running.Go(func() { _ = wait(ctx, name) }) // it ends with its context
		}
		testutil.Eventually(t, func() error {
			if got := w.keeper.Waiting(name); got != n {
				return fmt.Errorf("%d callers wait for %s, not %d", got, name, n)
			}
			return nil
		})
	}
	name := func(i int) string { return fmt.Sprint("lock", i) }
	for i := range ofGroup/ofLock + 1 {
		w.acquire(name(i), "x", hour)
	}
	first, leaveFirst := context.WithCancel(ctx)
	fill(first, name(0), ofLock)
	err := wait(ctx, name(0))
	if !fault.Is(err, fault.Overloaded) || !strings.Contains(err.Error(), "64 callers wait") {
		t.Errorf("one caller more than allowed for a lock: %v", err)
	}
	for i := range ofGroup/ofLock - 1 {
		fill(ctx, name(i+1), ofLock)
	}
	last := name(ofGroup / ofLock)
	fill(ctx, last, ofGroup%ofLock)
	err = wait(ctx, last)
	if !fault.Is(err, fault.Overloaded) || !strings.Contains(err.Error(), "of the group") {
		t.Errorf("one caller more than allowed for a group: %v", err)
	}
	leaveFirst()
	testutil.Eventually(t, func() error {
		if got := w.keeper.Waiting(name(0)); got != 0 {
			return fmt.Errorf("%d callers still wait", got)
		}
		return nil
	})
	fill(ctx, name(0), 1)
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
	w.acquire("a", "x", hour)
	done := w.wait(t.Context(), "a", "y")
	l, _ := w.lock("a")
	w.commit(locks.Renew("a", l, locks.Claim{Owner: "x", Expiry: 50 * time.Millisecond}))
	testutil.Must(t, <-done)
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
		if err := <-done; err == nil { // the lock was granted before the caller gave up
			l := w.ownedBy("a", "y")
			_, err := w.keeper.Release(t.Context(), "a", l.Token)
			testutil.Must(t, err)
		} else if !fault.Is(err, fault.Timeout) {
			t.Fatal(err)
		}
		w.ownedBy("a", "")
	}
}

// A repeated call finds the lock that its earlier attempt has acquired, and gives up at the same moment. The lock then
// becomes free.
func TestWait_RepeatedCallThatGivesUpLeavesTheLock(t *testing.T) {
	w := newWorld(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := locks.Claim{Owner: "y", Request: "r", Expiry: hour}
	for range 50 {
		w.commit(locks.Acquire("a", c))
		if token, err := w.keeper.Wait(ended, "a", c); err == nil {
			_, err := w.keeper.Release(t.Context(), "a", token)
			testutil.Must(t, err)
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

func TestAdmit_CountsLocks(t *testing.T) {
	w := newWorld(t)
	w.limit = 2
	w.lead()
	encode := func(r *command.Request) []byte {
		b, err := command.AppendRequest(nil, r)
		testutil.Must(t, err)
		return b
	}
	acquire := encode(locks.Acquire("c", locks.Claim{Owner: "x", Expiry: hour}))
	admits := func(want bool) {
		t.Helper()
		testutil.Eventually(t, func() error { // Update has read what was applied
			if err := w.keeper.Admit(acquire); (err == nil) != want || err != nil && !fault.Is(err, fault.Overloaded) {
				return fmt.Errorf("Admit = %w, want admission %t", err, want)
			}
			return nil
		})
	}
	w.acquire("a", "x", hour)
	token := w.acquire("b", "x", hour)
	admits(false)
	for what, r := range map[string]*command.Request{
		"another call for a lock":     locks.Acquire("a", locks.Claim{Owner: "y", Expiry: hour}),
		"a renewal":                   locks.Renew("a", locks.Lock{}, locks.Claim{Expiry: hour}),
		"an expiry":                   locks.Expire("a", locks.Lock{Token: token}),
		"a write with a token":        checkedWrite(token),
		"a write of an absent record": checkedAbsent(),
	} {
		if err := w.keeper.Admit(encode(r)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.keeper.Admit([]byte{1}); err != nil {
		t.Errorf("what is no request: %v", err)
	}
	w.depose()
	admits(true) // a server that does not lead never refuses
	w.lead()
	admits(false)
	released, err := w.keeper.Release(t.Context(), "b", token)
	testutil.Must(t, err)
	if !released {
		t.Error("the lock was not released")
	}
	admits(true)
	w.acquire("b", "x", 20*time.Millisecond)
	w.ownedBy("b", "")
	admits(true)
}

func checkedWrite(token uint64) *command.Request {
	return &command.Request{Kind: command.KindWrite, Ops: []command.Op{locks.Check("b", token),
		{Kind: command.OpSet, Store: "default/s", Key: "k"}}}
}

func checkedAbsent() *command.Request {
	r := checkedWrite(1)
	r.Ops[0], r.Ops[1] = r.Ops[1], r.Ops[0]
	r.Ops[0].Cond = command.CondAbsent
	return r
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

func TestWait_RepeatedCallTakesPlaceOfTheEarlierCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := w.acquire("a", "x", hour)
		first := w.wait(t.Context(), "a", "caller")
		synctest.Wait()
		other := w.wait(t.Context(), "a", "other")
		synctest.Wait()
		again := make(chan error, 1)
		go func() {
			_, err := w.keeper.Wait(t.Context(), "a", locks.Claim{Owner: "caller", Request: "caller", Expiry: hour})
			again <- err
		}()
		if err := <-first; !fault.Is(err, fault.Conflict) {
			t.Errorf("the earlier call: %v, want %s", err, fault.Conflict)
		}
		_, err := w.keeper.Release(t.Context(), "a", token)
		testutil.Must(t, err)
		testutil.Must(t, <-again)
		l := w.ownedBy("a", "caller")
		_, err = w.keeper.Release(t.Context(), "a", l.Token)
		testutil.Must(t, err)
		testutil.Must(t, <-other)
		w.ownedBy("a", "other")
		if n := w.keeper.Waiting("a"); n != 0 {
			t.Errorf("%d callers wait", n)
		}
	})
}

func TestWait_RepeatedCallKeepsGrantThatTheFirstCallDidNotGet(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", hour)
	ctx, cancel := context.WithCancel(t.Context())
	first := w.wait(ctx, "a", "caller")
	applied, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.after = func(r *command.Request) {
		if gives(r, "caller") {
			once.Do(func() {
				close(applied)
				<-proceed
			})
		}
	}
	released := make(chan error, 1)
	go func() {
		_, err := w.keeper.Release(t.Context(), "a", token)
		released <- err
	}()
	<-applied // the first call does not know of the grant yet
	cancel()
	if err := <-first; !fault.Is(err, fault.Timeout) {
		t.Fatalf("the first call: %v, want %s", err, fault.Timeout)
	}
	got, err := w.keeper.Wait(t.Context(), "a", locks.Claim{Owner: "caller", Request: "caller", Expiry: hour})
	testutil.Must(t, err)
	close(proceed)
	testutil.Must(t, <-released)
	if l, found := w.lock("a"); !found || l.Token != got {
		t.Errorf("the repeated call has got token %d, but the lock is %+v, %t", got, l, found)
	}
}

func TestWait_LateGrantToAnsweredCallerIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		arrived, owned, proceed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.before = func(r *command.Request) {
			if gives(r, "caller") {
				late := false
				once.Do(func() { late = true })
				if late {
					close(arrived)
					<-proceed
				}
				<-owned // x gets the lock before any further request for the caller
			}
		}
		done := make(chan uint64, 1)
		go func() {
			token, err := w.keeper.Wait(t.Context(), "a", locks.Claim{Owner: "caller", Request: "call", Expiry: hour})
			if err != nil {
				t.Error(err)
			}
			done <- token
		}()
		<-arrived // a first request for the caller, which is applied late
		token := w.acquire("a", "x", hour)
		close(owned)
		_, err := w.keeper.Release(t.Context(), "a", token)
		testutil.Must(t, err)
		_, err = w.keeper.Release(t.Context(), "a", <-done) // which a second request has acquired
		testutil.Must(t, err)
		w.ownedBy("a", "")
		close(proceed)
		pass(50 * time.Millisecond)
		w.ownedBy("a", "")
	})
}

func TestRelease_ThatGivesUpDoesNotFailTheNextOwner(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", hour)
	done := w.wait(t.Context(), "a", "caller")
	ctx, cancel := context.WithCancel(t.Context())
	w.after = func(*command.Request) { cancel() } // before the result arrives
	_, _ = w.keeper.Release(ctx, "a", token)
	if err := <-done; err != nil {
		t.Errorf("the caller that waits for the lock: %v", err)
	}
	w.ownedBy("a", "caller")
}

// unlock calls Unlock for the owner x of the lock a.
func (w *world) unlock(id command.RequestID) kv.Outcome {
	w.t.Helper()
	outcome, err := w.keeper.Unlock(w.t.Context(), "a", "x", 0, id)
	testutil.Must(w.t, err)
	return outcome
}

func TestUnlock_OnlyOwnerEndsLock(t *testing.T) {
	w := newWorld(t)
	if got := w.unlock(command.RequestID{}); got != kv.Conflict {
		t.Errorf("a free lock: %s", got)
	}
	token := w.acquire("a", "other", hour)
	if got := w.unlock(command.RequestID{}); got != kv.Conflict {
		t.Errorf("the lock of another owner: %s", got)
	}
	if l := w.ownedBy("a", "other"); l.Token != token {
		t.Errorf("the token is %d, not %d", l.Token, token)
	}
	_, err := w.keeper.Release(t.Context(), "a", token)
	testutil.Must(t, err)
	w.acquire("a", "x", hour)
	done := w.wait(t.Context(), "a", "y")
	if got := w.unlock(command.RequestID{}); got != kv.Applied {
		t.Errorf("the lock of the owner: %s", got)
	}
	testutil.Must(t, <-done)
	w.ownedBy("a", "y")
	w.depose()
	if _, err := w.keeper.Unlock(t.Context(), "a", "y", 0, command.RequestID{}); !fault.Is(err, fault.NotLeader) {
		t.Errorf("a server that does not lead: %v", err)
	}
}

func TestUnlock_WithTokenEndsOnlyThatAcquisition(t *testing.T) {
	w := newWorld(t)
	old := w.acquire("a", "x", hour)
	_, err := w.keeper.Release(t.Context(), "a", old)
	testutil.Must(t, err)
	now := w.acquire("a", "x", hour)
	for _, step := range []struct {
		token uint64
		want  kv.Outcome
	}{{old, kv.Conflict}, {now, kv.Applied}, {now, kv.Conflict}} {
		got, err := w.keeper.Unlock(t.Context(), "a", "x", step.token, command.RequestID{})
		testutil.Must(t, err)
		if got != step.want {
			t.Errorf("token %d: %s, want %s", step.token, got, step.want)
		}
	}
}

// A repeated call gets the result of the first attempt. It ends no lock that was acquired in between, and gives none
// to a caller that waits.
func TestUnlock_RepeatedCallAppliesOnce(t *testing.T) {
	w := newWorld(t)
	id := command.RequestID{Seq: 1}
	if got := w.unlock(command.RequestID{Origin: 99, Seq: 1}); got != kv.Stale {
		t.Errorf("an unknown origin: %s", got)
	}
	id.Origin = w.commit(&command.Request{Kind: command.KindRegister, Name: "node"}).Revisions[0]
	w.acquire("a", "x", hour)
	if got := w.unlock(id); got != kv.Applied {
		t.Errorf("the first attempt: %s", got)
	}
	if got := w.unlock(id); got != kv.Applied {
		t.Errorf("the second attempt, when the lock is free: %s", got)
	}
	w.depose()
	w.lead()
	token := w.acquire("a", "x", hour)
	done := w.wait(t.Context(), "a", "y")
	if got := w.unlock(id); got != kv.Applied {
		t.Errorf("the third attempt, at the next leader: %s", got)
	}
	if l := w.ownedBy("a", "x"); l.Token != token || len(done) > 0 || w.keeper.Waiting("a") != 1 {
		t.Errorf("the token is %d, not %d, and %d callers wait", l.Token, token, w.keeper.Waiting("a"))
	}
	id.Seq++
	if got := w.unlock(id); got != kv.Applied {
		t.Errorf("the next call: %s", got)
	}
	testutil.Must(t, <-done)
	id.Seq++
	if got := w.unlock(id); got != kv.Conflict {
		t.Errorf("the lock of another owner: %s", got)
	}
	_, err := w.keeper.Release(t.Context(), "a", w.ownedBy("a", "y").Token)
	testutil.Must(t, err)
	w.acquire("a", "x", hour)
	if got := w.unlock(id); got != kv.Conflict {
		t.Errorf("a repetition after the owner has got the lock: %s", got)
	}
	w.ownedBy("a", "x")
}

func TestCheck_WriteOfFormerOwnerIsRefused(t *testing.T) {
	w := newWorld(t)
	token := w.acquire("a", "x", 20*time.Millisecond)
	put := func(token uint64) kv.Outcome {
		return w.commit(&command.Request{Kind: command.KindWrite, Ops: []command.Op{locks.Check("a", token),
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

// A new leader cannot read the locks at first. It reads them again after a pause, although no record changes. So the
// lock expires.
func TestKeeper_ReadsAgainAfterFailedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.acquire("a", "x", time.Minute)
		w.depose()
		synctest.Wait()
		repair := w.breakReads()
		w.lead()
		synctest.Wait()
		repair()
		pass(time.Hour)
		if l, found := w.lock("a"); found {
			t.Errorf("a lock of a minute has not ended: %+v", l)
		}
	})
}

// breakReads makes all reads of the Keeper fail, until the test calls repair.
func (w *world) breakReads() (repair func()) {
	w.t.Helper()
	closed, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { w.t.Error(err) }})
	testutil.Must(w.t, err)
	testutil.Must(w.t, closed.Close())
	whole := w.machine
	w.replace(closed)
	return func() { w.replace(whole) }
}

func (w *world) replace(m *kv.Machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machine = m
}
