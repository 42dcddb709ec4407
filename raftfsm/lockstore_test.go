package raftfsm_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

func claimOf(resource, owner string, expiry time.Duration) lock.Claim {
	return lock.Claim{Key: lock.Key{Prefix: "app", Resource: resource}, Owner: owner, Expiry: expiry}
}

func tryLock(t testing.TB, l lock.Store, c lock.Claim) lock.Grant {
	t.Helper()
	g, err := l.TryLock(within(t, time.Minute), c)
	must(t, err)
	return g
}

func unlock(t testing.TB, l lock.Store, resource, owner string) lock.Status {
	t.Helper()
	s, err := l.Unlock(within(t, time.Minute),
		lock.Release{Key: lock.Key{Prefix: "app", Resource: resource}, Owner: owner})
	must(t, err)
	return s
}

// lockNodes returns the locks of one component at three servers and at a node without data.
func lockNodes(t *testing.T) (*cluster, []*locks.Store) {
	t.Helper()
	return lockNodesWith(t, nil)
}

// lockNodesWith works like lockNodes, with a change to the options of the servers.
func lockNodesWith(t *testing.T, change func(*raftfsm.Options)) (*cluster, []*locks.Store) {
	t.Helper()
	c := startCluster(t, 3, change)
	var nodes []*locks.Store
	for _, h := range c.running() {
		nodes = append(nodes, h.Store("", "s").Locks("lockstore", false))
	}
	side, _ := c.sidecar("side")
	return c, append(nodes, side.Store("", "s").Locks("lockstore", false))
}

func TestLocks_OneOwnerAtATime(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	const rounds = 5
	var mu sync.Mutex
	inside, last := "", uint64(0)
	var wg sync.WaitGroup
	for i, n := range nodes {
		owner := fmt.Sprint("owner", i)
		wg.Go(func() {
			for range rounds {
				c := claimOf("a", owner, time.Hour)
				c.Wait = time.Minute
				g, err := n.TryLock(t.Context(), c)
				if err != nil || !g.Granted {
					t.Errorf("%s: %+v, %v", owner, g, err)
					return
				}
				mu.Lock()
				if inside != "" || g.Token <= last {
					t.Errorf("%s has token %d while %q owns the lock with token %d", owner, g.Token, inside, last)
				}
				inside, last = owner, g.Token
				mu.Unlock()
				mu.Lock()
				inside = ""
				mu.Unlock()
				s, err := n.Unlock(t.Context(), lock.Release{Key: c.Key, Owner: owner})
				if err != nil || s != lock.Unlocked {
					t.Errorf("%s: Unlock = %d, %v", owner, s, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestLocks_LongestExpiry(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	if g := tryLock(t, nodes[0], claimOf("day", "x", 24*time.Hour)); !g.Granted || g.Expiry != 24*time.Hour {
		t.Errorf("24 hours: %+v", g)
	}
	long := claimOf("longer", "x", 24*time.Hour+time.Second)
	if _, err := nodes[0].TryLock(t.Context(), long); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a longer expiry: %v", err)
	}
	long.Key.Resource = "day"
	if _, err := nodes[0].Renew(t.Context(), long); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a renewal with a longer expiry: %v", err)
	}
}

func TestLocks_LongestNames(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	longest := strings.Repeat("n", 1024)
	if g := tryLock(t, nodes[0], claimOf(longest, longest, time.Minute)); !g.Granted {
		t.Errorf("names of 1 KiB: %+v", g)
	}
	for what, c := range map[string]lock.Claim{"resource": claimOf(longest+"n", "x", time.Minute),
		"owner": claimOf("r", longest+"n", time.Minute)} {
		if _, err := nodes[0].TryLock(t.Context(), c); !fault.Is(err, fault.TooLarge) {
			t.Errorf("a longer %s: %v", what, err)
		}
	}
}

// A group with the maximum number of locks refuses further locks at every node. It still serves its existing locks,
// and a lock that ends makes room for another.
func TestLocks_GroupHasLimitedNumber(t *testing.T) {
	c, nodes := lockNodesWith(t, func(o *raftfsm.Options) { o.MaxLocks = 2 })
	reentrant := c.running()[0].Store("", "s").Locks("lockstore", true)
	tryLock(t, nodes[0], claimOf("a", "x", time.Hour))
	tryLock(t, nodes[0], claimOf("b", "x", time.Hour))
	refused := func(at int) { // the leader may not have counted the newest change yet
		t.Helper()
		eventually(t, func() error {
			g, err := nodes[at].TryLock(within(t, time.Minute), claimOf("c", "x", time.Hour))
			if fault.Is(err, fault.Overloaded) && strings.Contains(err.Error(), "has 2 locks") {
				return nil
			}
			if g.Granted {
				unlock(t, nodes[at], "c", "x")
			}
			return fmt.Errorf("node %d: a lock over the limit: %+v, %w", at, g, err)
		})
	}
	granted := func(resource string, expiry time.Duration) {
		t.Helper()
		eventually(t, func() error {
			g, err := nodes[3].TryLock(within(t, time.Minute), claimOf(resource, "x", expiry))
			if err == nil && !g.Granted {
				err = fmt.Errorf("%s: %+v", resource, g)
			}
			return err
		})
	}
	for i := range nodes {
		refused(i)
	}
	if g := tryLock(t, nodes[1], claimOf("a", "y", time.Hour)); g.Granted {
		t.Errorf("a second owner: %+v", g)
	}
	if g := tryLock(t, reentrant, claimOf("a", "x", time.Hour)); !g.Granted {
		t.Errorf("the renewal by TryLock: %+v", g)
	}
	if s := unlock(t, nodes[1], "a", "x"); s != lock.Unlocked {
		t.Errorf("Unlock: %d", s)
	}
	granted("d", 200*time.Millisecond)
	granted("e", time.Hour) // after d has expired
	refused(3)
	c.stop(c.leader())
	refused(3) // by the next leader
}

func TestLocks_AnswersOfDapr(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	a, b := nodes[0], nodes[3]
	first := tryLock(t, a, claimOf("r", "x", time.Hour))
	if !first.Granted || first.Token == 0 || first.Expiry != time.Hour {
		t.Errorf("first TryLock: %+v", first)
	}
	if g := tryLock(t, b, claimOf("r", "y", time.Hour)); g.Granted {
		t.Errorf("a second owner: %+v", g)
	}
	if g := tryLock(t, b, claimOf("r", "x", time.Hour)); g.Granted {
		t.Errorf("the owner again: %+v", g)
	}
	if g := tryLock(t, b, claimOf("other", "y", time.Hour)); !g.Granted {
		t.Errorf("another resource: %+v", g)
	}
	if s := unlock(t, b, "r", "y"); s != lock.BelongsToOthers {
		t.Errorf("Unlock of another owner: %d", s)
	}
	if s := unlock(t, b, "r", "x"); s != lock.Unlocked {
		t.Errorf("Unlock: %d", s)
	}
	if s := unlock(t, a, "r", "x"); s != lock.DoesNotExist {
		t.Errorf("second Unlock: %d", s)
	}
}

func TestLocks_UnlockWithTokenEndsOnlyThatAcquisition(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	n := nodes[3]
	old := tryLock(t, n, claimOf("r", "x", time.Hour))
	unlock(t, n, "r", "x")
	now := tryLock(t, n, claimOf("r", "x", time.Hour))
	for _, step := range []struct {
		owner string
		token uint64
		want  lock.Status
	}{
		{"x", old.Token, lock.BelongsToOthers}, {"y", now.Token, lock.BelongsToOthers},
		{"x", now.Token, lock.Unlocked}, {"x", now.Token, lock.DoesNotExist},
	} {
		r := lock.Release{Key: claimOf("r", "", 0).Key, Owner: step.owner, Token: step.token}
		s, err := n.Unlock(t.Context(), r)
		if err != nil || s != step.want {
			t.Errorf("Unlock of %s with token %d: %d, %v, want %d", step.owner, step.token, s, err, step.want)
		}
	}
}

func TestLocks_RepeatedRequestGetsAnswerOfTheFirst(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	try := func(at int, resource, id string, wait time.Duration) lock.Grant {
		t.Helper()
		c := claimOf(resource, "x", time.Hour)
		c.RequestID, c.Wait = id, wait
		return tryLock(t, nodes[at], c)
	}
	first := try(3, "r", "1", 0)
	if !first.Granted || first.Expiry != time.Hour {
		t.Fatalf("the first request: %+v", first)
	}
	again := try(0, "r", "1", 0)
	if !again.Granted || again.Token != first.Token || again.Expiry <= 0 || again.Expiry > time.Hour {
		t.Errorf("a repeated request: %+v, want token %d", again, first.Token)
	}
	if g := try(3, "r", "2", 0); g.Granted {
		t.Errorf("another request: %+v", g)
	}
	if s := unlock(t, nodes[3], "r", "x"); s != lock.Unlocked {
		t.Errorf("Unlock: %d", s)
	}
	if g := try(3, "r", "1", 0); !g.Granted || g.Token != first.Token || g.Expiry != 0 {
		t.Errorf("a repeated request after the lock has ended: %+v, want token %d and no expiry", g, first.Token)
	}
	if g := try(3, "r", "2", 0); g.Granted {
		t.Errorf("the other request, repeated: %+v", g)
	}
	c := claimOf("r", "y", time.Hour)
	c.RequestID = "1"
	if _, err := nodes[3].TryLock(t.Context(), c); !fault.Is(err, fault.Invalid) {
		t.Errorf("the request id with another owner: %v, want %s", err, fault.Invalid)
	}
}

func TestLocks_RepeatedWaitGetsTheLockOfTheFirst(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	try := func(at int, owner, id string, wait time.Duration) lock.Grant {
		t.Helper()
		c := claimOf("r", owner, time.Hour)
		c.RequestID, c.Wait = id, wait
		return tryLock(t, nodes[at], c)
	}
	first := try(3, "x", "1", time.Minute)
	if !first.Granted || first.Expiry <= 0 || first.Expiry > time.Hour {
		t.Fatalf("the first request: %+v", first)
	}
	if again := try(1, "x", "1", time.Minute); !again.Granted || again.Token != first.Token ||
		again.Expiry <= 0 || again.Expiry > time.Hour {
		t.Errorf("a repeated request: %+v, want token %d", again, first.Token)
	}
	for _, other := range []struct{ owner, id string }{{"x", "2"}, {"y", "1"}} {
		if g := try(1, other.owner, other.id, 100*time.Millisecond); g.Granted {
			t.Errorf("the request %s of %s has got %+v", other.id, other.owner, g)
		}
	}
	granted := make(chan lock.Grant, 1)
	go func() {
		c := claimOf("r", "y", time.Hour)
		c.RequestID, c.Wait = "3", time.Minute
		g, err := nodes[0].TryLock(context.WithoutCancel(t.Context()), c)
		if err != nil {
			t.Errorf("waiting: %v", err)
		}
		granted <- g
	}()
	if s := unlock(t, nodes[3], "r", "x"); s != lock.Unlocked {
		t.Errorf("Unlock: %d", s)
	}
	second := <-granted
	if !second.Granted || second.Token <= first.Token {
		t.Errorf("the request that has waited: %+v", second)
	}
	if again := try(3, "y", "3", time.Minute); !again.Granted || again.Token != second.Token {
		t.Errorf("the request that has waited, repeated: %+v, want token %d", again, second.Token)
	}
}

// An earlier attempt has acquired the lock, so the failure of the repeated call must not say that nothing was done.
func TestLocks_RepeatedRequestWithoutAnswerIsIndeterminate(t *testing.T) {
	c, nodes := lockNodes(t)
	claim := claimOf("r", "x", time.Hour)
	claim.RequestID = "1"
	tryLock(t, nodes[3], claim)
	c.spoilLocks(func([]byte, func() ([]byte, error)) ([]byte, error) {
		return nil, fault.New(fault.Timeout, "test.Call", "the call was not sent in time")
	})
	if _, err := nodes[3].TryLock(t.Context(), claim); !fault.Is(err, fault.Indeterminate) {
		t.Errorf("%v, want %s", err, fault.Indeterminate)
	}
}

// spoilLocks passes the calls about locks to spoil, which may execute them.
func (c *cluster) spoilLocks(spoil func(payload []byte, serve func() ([]byte, error)) ([]byte, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoil = func(method string, payload []byte, serve func() ([]byte, error)) ([]byte, error) {
		if method != peercalls.MethodLock {
			return serve()
		}
		return spoil(payload, serve)
	}
}

// unlocks checks the three answers of Unlock at a node without data.
func unlocks(t *testing.T, nodes []*locks.Store) {
	t.Helper()
	tryLock(t, nodes[0], claimOf("r", "x", time.Hour))
	for _, step := range []struct {
		owner string
		want  lock.Status
	}{{"y", lock.BelongsToOthers}, {"x", lock.Unlocked}, {"x", lock.DoesNotExist}} {
		if s := unlock(t, nodes[3], "r", step.owner); s != step.want {
			t.Errorf("Unlock of %s: %d, want %d", step.owner, s, step.want)
		}
	}
}

func TestLocks_UnlockWhoseAnswerIsLost(t *testing.T) {
	c, nodes := lockNodes(t)
	var calls atomic.Int32
	c.spoilLocks(func(_ []byte, serve func() ([]byte, error)) ([]byte, error) {
		out, err := serve()
		if calls.Add(1)%2 == 1 {
			return nil, fault.New(fault.Indeterminate, "test.Call", "the answer was lost")
		}
		return out, err
	})
	unlocks(t, nodes)
	if calls.Load() < 6 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestLocks_RenewAndLook(t *testing.T) {
	t.Parallel()
	_, nodes := lockNodes(t)
	n := nodes[3]
	key := lock.Key{Prefix: "app", Resource: "r"}
	g := tryLock(t, n, claimOf("r", "x", time.Minute))
	renewed, err := n.Renew(t.Context(), claimOf("r", "x", time.Hour))
	must(t, err)
	if !renewed.Granted || renewed.Token != g.Token {
		t.Errorf("Renew: %+v after %+v", renewed, g)
	}
	if other, err := n.Renew(t.Context(), claimOf("r", "y", time.Hour)); err != nil || other.Granted {
		t.Errorf("Renew of another owner: %+v, %v", other, err)
	}
	eventually(t, func() error {
		seen, err := n.Look(t.Context(), key)
		if err == nil && (!seen.Granted || seen.Token != g.Token || seen.Expiry <= time.Minute ||
			seen.Expiry > time.Hour) {
			err = fmt.Errorf("Look: %+v", seen)
		}
		return err
	})
	unlock(t, n, "r", "x")
	if seen, err := n.Look(t.Context(), key); err != nil || seen.Granted {
		t.Errorf("Look at a free lock: %+v, %v", seen, err)
	}
}

func TestLocks_ReentrantTryLockRenews(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	l := h.Store("", "s").Locks("lockstore", true)
	first := tryLock(t, l, claimOf("r", "x", time.Minute))
	again := tryLock(t, l, claimOf("r", "x", time.Hour))
	if !again.Granted || again.Token != first.Token || again.Expiry != time.Hour {
		t.Errorf("%+v after %+v", again, first)
	}
	if g := tryLock(t, l, claimOf("r", "y", time.Hour)); g.Granted {
		t.Errorf("another owner: %+v", g)
	}
}

// A process is paused, and another process gets its lock. The late write of the first process must be refused because
// of its token.
func TestFencing_LateWriteOfFormerOwnerIsRefused(t *testing.T) {
	t.Parallel()
	c, nodes := lockNodes(t)
	store := c.running()[0].Store("", "s")
	old := tryLock(t, nodes[0], claimOf("r", "paused", 50*time.Millisecond))
	claim := claimOf("r", "next", time.Hour)
	claim.Wait = time.Minute
	now := tryLock(t, nodes[3], claim)
	if !now.Granted || now.Token <= old.Token {
		t.Fatalf("%+v after %+v", now, old)
	}
	write := func(g lock.Grant, value string) error {
		_, err := store.Set(t.Context(), state.SetRequest{Consistency: state.Strong,
			Items: []state.Write{{Key: "app||k", Value: []byte(value)}},
			Locks: []state.LockToken{{Component: "lockstore", Prefix: "app", Resource: "r", Token: g.Token}}})
		return err
	}
	must(t, write(now, "next"))
	if err := write(old, "paused"); !fault.Is(err, fault.LockLost) {
		t.Errorf("the late write: %v, want %s", err, fault.LockLost)
	}
	if it := get(t, store, "app||k", state.Strong); string(it.Value) != "next" {
		t.Errorf("the value is %q", it.Value)
	}
	ops := []state.Operation{{Write: state.Write{Key: "app||k", Value: []byte("tx")}}}
	_, err := store.Transact(t.Context(), state.TransactRequest{Operations: ops,
		Locks: []state.LockToken{{Component: "lockstore", Prefix: "app", Resource: "r", Token: old.Token}}})
	if !fault.Is(err, fault.LockLost) {
		t.Errorf("the late transaction: %v, want %s", err, fault.LockLost)
	}
	// Without the check the same write is applied: a lock alone does not protect against a paused owner.
	_, err = store.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("paused")}}})
	must(t, err)
}

func TestLocks_WaiterGetsLockAfterLossOfLeader(t *testing.T) {
	t.Parallel()
	c, nodes := lockNodes(t)
	side := nodes[3]
	tryLock(t, side, claimOf("r", "x", time.Hour))
	granted := make(chan lock.Grant, 1)
	go func() {
		claim := claimOf("r", "y", time.Hour)
		claim.Wait = 2 * time.Minute
		g, err := side.TryLock(context.WithoutCancel(t.Context()), claim)
		if err != nil {
			t.Errorf("waiting: %v", err)
		}
		granted <- g
	}()
	c.stop(c.leader())
	if s := unlock(t, side, "r", "x"); s != lock.Unlocked {
		t.Errorf("Unlock: %d", s)
	}
	if g := <-granted; !g.Granted {
		t.Errorf("the waiter has got %+v", g)
	}
}

func TestLocks_RestoreRemovesLocksAndTokensGrow(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	s := h.Store("", "s")
	l := s.Locks("lockstore", false)
	before := tryLock(t, l, claimOf("r", "x", time.Hour))
	restore(t, h, save(t, h))
	after := tryLock(t, l, claimOf("r", "y", time.Hour))
	if !after.Granted || after.Token <= before.Token {
		t.Errorf("%+v after %+v and a restore", after, before)
	}
	_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "app||k"}},
		Locks: []state.LockToken{{Component: "lockstore", Prefix: "app", Resource: "r", Token: before.Token}}})
	if !fault.Is(err, fault.LockLost) {
		t.Errorf("a write with a token from before the restore: %v", err)
	}
}

func TestHost_ListsAndReleasesLocks(t *testing.T) {
	t.Parallel()
	c, nodes := lockNodes(t)
	first := tryLock(t, nodes[0], claimOf("r", "x", time.Hour))
	other := claimOf("r", "y", time.Hour)
	other.Prefix = ""
	tryLock(t, nodes[3], other)
	for _, h := range c.running() {
		held, err := h.HeldLocks(within(t, time.Minute))
		must(t, err)
		if len(held) != 2 {
			t.Fatalf("%+v", held)
		}
		for _, l := range held {
			if l.Component != "lockstore" || l.StateStore != "s" || l.Resource != "r" || l.Expiry != time.Hour ||
				(l.Prefix == "app") != (l.Owner == "x") || (l.Owner == "x") != (l.Token == first.Token) {
				t.Errorf("%+v", l)
			}
		}
	}
	held, err := c.running()[1].HeldLocks(within(t, time.Minute))
	must(t, err)
	for i := range held {
		released, err := c.running()[2].ReleaseLock(within(t, time.Minute), &held[i])
		if err != nil || !released {
			t.Errorf("ReleaseLock = %t, %v", released, err)
		}
		if released, err = c.running()[2].ReleaseLock(within(t, time.Minute), &held[i]); err != nil || released {
			t.Errorf("second ReleaseLock = %t, %v", released, err)
		}
	}
	if held, err = c.running()[0].HeldLocks(within(t, time.Minute)); err != nil || len(held) > 0 {
		t.Errorf("%+v, %v", held, err)
	}
	if g := tryLock(t, nodes[1], claimOf("r", "z", time.Hour)); !g.Granted || g.Token <= first.Token {
		t.Errorf("%+v after %+v", g, first)
	}
}
