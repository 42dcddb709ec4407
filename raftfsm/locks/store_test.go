package locks_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/records"
)

// access is the access of a node to the group of a world.
type access struct {
	records.Access // has the methods that a lock store does not call here

	w *world
}

func (a access) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

func (a access) Values(_ context.Context, _ uint32, store string, keys []string) ([]kv.Value, error) {
	return a.w.machine.GetMany(store, keys, 0)
}

func (a access) Write(_ context.Context, _ uint32, r *command.Request) (kv.Result, error) {
	return a.w.commitNow(r)
}

func (a access) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	out, err := a.w.keeper.Serve(ctx, &lenprefix.Reader{Rest: body})
	return out, false, err
}

func TestRenew_ErrorNamesTheOperation(t *testing.T) {
	s := locks.NewStore(access{}, "s", "c", false)
	_, err := s.Renew(t.Context(), lock.Claim{Expiry: lock.MaxExpiry + 1})
	var e *fault.Error
	if !errors.As(err, &e) || e.Op != "raftfsm.Renew" {
		t.Errorf("a claim with a long expiry: %v", err)
	}
}

func TestTryLock_GrantAtTheEndOfTheWaitIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := locks.NewStore(access{w: w}, "s", "c", false)
		claim := lock.Claim{Key: lock.Key{Prefix: "app", Resource: "r"}, Owner: "first", Expiry: hour}
		first, err := s.TryLock(t.Context(), claim)
		testutil.Must(t, err)
		proceed := make(chan struct{})
		var once sync.Once
		w.after = func(r *command.Request) {
			if gives(r, "second") {
				once.Do(func() { <-proceed }) // the caller stops waiting before it learns of its grant
			}
		}
		released := make(chan struct{})
		time.AfterFunc(time.Second, func() {
			defer close(released)
			name := locks.RecordName("s", "c", claim.Key)
			if _, err := w.keeper.Release(t.Context(), name, first.Token); err != nil {
				t.Error(err)
			}
		})
		claim.Owner, claim.Wait = "second", 2*time.Second
		got, err := s.TryLock(t.Context(), claim)
		testutil.Must(t, err)
		close(proceed)
		<-released
		synctest.Wait()
		now, err := s.Look(t.Context(), claim.Key)
		testutil.Must(t, err)
		if now.Granted != got.Granted || now.Token != got.Token {
			t.Errorf("the caller has got %+v, but the lock is %+v", got, now)
		}
	})
}

// cut is the access of a node that loses the leader while a call waits.
type cut struct {
	access
	meanwhile func() // runs after the time-out of the call, before the node reads the lock
}

func (a cut) Ask(ctx context.Context, gid uint32, method string, body []byte) ([]byte, bool, error) {
	if method != locks.MethodWait {
		return a.access.Ask(ctx, gid, method, body)
	}
	<-ctx.Done()
	a.meanwhile()
	return nil, false, ctx.Err()
}

func TestTryLock_EndOfAWaitDoesNotReleaseTheLockOfTheRepeatedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := locks.NewStore(access{w: w}, "s", "c", false)
		key := lock.Key{Prefix: "app", Resource: "r"}
		first, err := s.TryLock(t.Context(), lock.Claim{Key: key, Owner: "first", Expiry: hour})
		testutil.Must(t, err)
		claim := lock.Claim{Key: key, Owner: "second", RequestID: "id", Expiry: hour, Wait: 2 * time.Second}
		var repeated lock.Grant
		lost := cut{access{w: w}, func() {
			_, err := w.keeper.Release(t.Context(), locks.RecordName("s", "c", key), first.Token)
			testutil.Must(t, err)
			synctest.Wait()
			repeated, err = s.TryLock(t.Context(), claim)
			testutil.Must(t, err)
		}}
		got, err := locks.NewStore(lost, "s", "c", false).TryLock(t.Context(), claim)
		if !fault.Is(err, fault.Indeterminate) || got.Granted {
			t.Errorf("the first call: %+v, %v", got, err)
		}
		now, err := s.Look(t.Context(), key)
		testutil.Must(t, err)
		if !repeated.Granted || !now.Granted || now.Token != repeated.Token {
			t.Errorf("the repeated call has got %+v, but the lock is %+v", repeated, now)
		}
	})
}

// repeating is the access of a node that makes each call to the leader twice, because the first answer is lost.
type repeating struct {
	access
	id command.RequestID // of the last request
}

func (a *repeating) Groups(context.Context) (uint32, error) { return 1, nil }

func (a *repeating) List(_ context.Context, _ uint32, store string, p records.Page) (keys []string, more bool,
	err error) {
	found, more, err := a.w.machine.List(store, p.Prefix, p.After, p.Limit, 0)
	for i := range found {
		keys = append(keys, found[i].Key)
	}
	return keys, more, err
}

func (a *repeating) WithID(_ context.Context, _ uint32, f func(command.RequestID) (known bool, err error)) error {
	for {
		a.id.Seq++
		if known, err := f(a.id); known {
			return err
		}
	}
}

func (a *repeating) Ask(ctx context.Context, gid uint32, method string, body []byte) ([]byte, bool, error) {
	if _, _, err := a.access.Ask(ctx, gid, method, body); err != nil {
		return nil, false, err
	}
	out, _, err := a.access.Ask(ctx, gid, method, body)
	return out, true, err
}

// End reports that it has released a lock only if it has, even if it had to repeat its call.
func TestEnd_RepeatedCallReportsWhatItHasDone(t *testing.T) {
	name := locks.RecordName("ns/s", "c", lock.Key{Prefix: "app", Resource: "r"})
	for what, c := range map[string]struct {
		meanwhile func(w *world, l *locks.Held)
		want      bool
	}{
		"held": {func(*world, *locks.Held) {}, true},
		"expired before": {func(w *world, l *locks.Held) {
			_, err := w.keeper.Release(t.Context(), name, l.Token)
			testutil.Must(t, err)
		}, false},
		"granted again before": {func(w *world, l *locks.Held) {
			_, err := w.keeper.Release(t.Context(), name, l.Token)
			testutil.Must(t, err)
			w.acquire(name, "x", hour)
		}, false},
	} {
		w := newWorld(t)
		a := &repeating{access: access{w: w}}
		a.id.Origin = w.commit(&command.Request{Kind: command.KindRegister, Name: "node"}).Revisions[0]
		w.acquire(name, "x", hour)
		held, err := locks.List(t.Context(), a)
		testutil.Must(t, err)
		if len(held) != 1 {
			t.Fatalf("%s: the locks are %v", what, held)
		}
		c.meanwhile(w, &held[0])
		if released, err := locks.End(t.Context(), a, &held[0]); err != nil || released != c.want {
			t.Errorf("%s: released is %t, %v", what, released, err)
		}
	}
}
