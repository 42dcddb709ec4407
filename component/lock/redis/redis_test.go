package redis_test

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/lock/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, pairs ...string) (*redis.Store, error) {
	t.Helper()
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "locks", redis.Fields())
	testutil.Must(t, err)
	s, err := redis.Open(t.Context(), redis.Options{Metadata: values, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { testutil.Must(t, s.Close()) })
	}
	return s, err
}

func opened(t *testing.T, pairs ...string) *redis.Store {
	t.Helper()
	s, err := open(t, pairs...)
	testutil.Must(t, err)
	return s
}

func key(resource string) lock.Key { return lock.Key{Prefix: "shop", Resource: resource} }

func tryLock(t *testing.T, s *redis.Store, resource, owner string, expiry time.Duration) bool {
	t.Helper()
	g, err := s.TryLock(t.Context(), lock.Claim{Key: key(resource), Owner: owner, Expiry: expiry})
	testutil.Must(t, err)
	if g.Token != 0 {
		t.Errorf("a lock in Redis has token %d", g.Token)
	}
	return g.Granted
}

func unlock(t *testing.T, s *redis.Store, k lock.Key, owner string) (lock.Status, error) {
	t.Helper()
	return s.Unlock(t.Context(), lock.Release{Key: k, Owner: owner})
}

func TestStore_AnswersOfDapr(t *testing.T) {
	srv := redistest.Start(t)
	a, b := opened(t, "redisHost", srv.Address), opened(t, "redisHost", srv.Address)
	for _, c := range []struct {
		name  string
		store *redis.Store
		owner string
		want  bool
	}{{"first", a, "x", true}, {"another owner", b, "y", false}, {"the owner again", a, "x", false}} {
		if got := tryLock(t, c.store, "r", c.owner, time.Hour); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
	for _, c := range []struct {
		owner string
		want  lock.Status
	}{{"y", lock.BelongsToOthers}, {"x", lock.Unlocked}, {"x", lock.DoesNotExist}} {
		if got, err := unlock(t, b, key("r"), c.owner); err != nil || got != c.want {
			t.Errorf("Unlock by %s: %d, %v, want %d", c.owner, got, err, c.want)
		}
	}
}

func TestStore_LayoutOfDapr(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, "redisHost", srv.Address)
	tryLock(t, s, "printer", "worker-1", time.Minute)
	if owner := srv.Admin.Get(t.Context(), "lock||shop||printer").Val(); owner != "worker-1" {
		t.Errorf("the owner in Redis is %q", owner)
	}
	if left := srv.Admin.PTTL(t.Context(), "lock||shop||printer").Val(); left <= 0 || left > time.Minute {
		t.Errorf("the expiry in Redis is %s", left)
	}
	testutil.Must(t, srv.Admin.Set(t.Context(), "lock||plain", "dapr", time.Minute).Err())
	plain := lock.Key{Resource: "plain"}
	g, err := s.TryLock(t.Context(), lock.Claim{Key: plain, Owner: "x", Expiry: time.Minute})
	if err != nil || g.Granted {
		t.Errorf("a lock that Dapr holds was granted: %+v, %v", g, err)
	}
	if got, err := unlock(t, s, plain, "dapr"); err != nil || got != lock.Unlocked {
		t.Errorf("Unlock of a lock of Dapr: %d, %v", got, err)
	}
	testutil.Must(t, srv.Admin.LPush(t.Context(), "lock||list", "x").Err())
	if _, err := unlock(t, s, lock.Key{Resource: "list"}, "x"); !fault.Is(err, fault.Invalid) {
		t.Errorf("Unlock of a list: %v", err)
	}
}

func TestStore_LockExpires(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, "redisHost", srv.Address)
	tryLock(t, s, "r", "x", 50*time.Millisecond)
	testutil.Eventually(t, func() error {
		if tryLock(t, s, "r", "y", time.Hour) {
			return nil
		}
		return fault.New(fault.Conflict, "test", "x still owns the lock")
	})
	if got, err := unlock(t, s, key("r"), "x"); err != nil || got != lock.BelongsToOthers {
		t.Errorf("Unlock by the former owner: %d, %v", got, err)
	}
}

func TestStore_OneOwnerAtATime(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, "redisHost", srv.Address)
	var granted atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c := lock.Claim{Key: key("r"), Owner: string(rune('a' + i)), Expiry: time.Hour}
			g, err := s.TryLock(t.Context(), c)
			if err != nil {
				t.Error(err)
			}
			if g.Granted {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 {
		t.Errorf("%d owners", granted.Load())
	}
}

// A TryLock whose answer is lost is not repeated: the second attempt would be refused if the first one was granted.
func TestStore_LostAnswerIsIndeterminate(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, "redisHost", srv.Address, "readTimeout", "100ms")
	srv.Signal(syscall.SIGSTOP)
	_, err := s.TryLock(t.Context(), lock.Claim{Key: key("r"), Owner: "x", Expiry: time.Hour})
	if !fault.Is(err, fault.Indeterminate) {
		t.Errorf("TryLock at a server that does not answer: %v", err)
	}
}

func TestOpen_RefusesWhatLosesLocks(t *testing.T) {
	if _, err := open(t, "redisHost", "127.0.0.1:1", "redisType", "cluster"); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), "Redis Cluster") {
		t.Errorf("a cluster: %v", err)
	}
	srv := redistest.Start(t)
	host, port, _ := strings.Cut(srv.Address, ":")
	redistest.Start(t, "--replicaof", host+" "+port)
	testutil.Eventually(t, func() error {
		if info := srv.Admin.Info(t.Context(), "replication").Val(); !strings.Contains(info, "connected_slaves:1") {
			return fault.New(fault.Unavailable, "test", "the replica is not connected")
		}
		return nil
	})
	if _, err := open(t, "redisHost", srv.Address); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), "replicas") {
		t.Errorf("a server with replicas: %v", err)
	}
}
