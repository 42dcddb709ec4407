package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// opening returns a function that opens a store with the settings in pairs, and closes it again.
func opening(t *testing.T, pairs ...string) func(context.Context) error {
	t.Helper()
	return func(ctx context.Context) error {
		t.Helper()
		s, err := redis.Open(ctx, redis.Options{Metadata: metadata(t, pairs...), Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			_ = s.Close()
		}
		return err
	}
}

func TestOpen_Unreachable(t *testing.T) {
	address := "127.0.0.1:" + statetest.FreePort(t)
	statetest.WantOpenFault(t, opening(t, "redisHost", address), fault.Unavailable, address, "check redisHost",
		"connection refused")
	statetest.WantOpenFault(t, opening(t, "redisHost", address, "redisType", "cluster"), fault.Unavailable, address)
	statetest.WantOpenFault(t, opening(t, "redisHost", address, "failover", "true", "sentinelMasterName", "main"),
		fault.Unavailable,
		address, "sentinel")
}

// TestOpen_WaitsForServer opens a store while its port closes the first two connections without an answer.
func TestOpen_WaitsForServer(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	listener, err := net.Listen("tcp", s.Address)
	testutil.Must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 2 {
			if c, err := listener.Accept(); err == nil {
				_ = c.Close()
			}
		}
		_ = listener.Close()
		s.Run()
	})
	opened(t, "redisHost", s.Address, "redisMaxRetries", "-1")
	wg.Wait()
}

func TestOpen_Replica(t *testing.T) {
	master := redistest.Start(t)
	host, port, _ := strings.Cut(master.Address, ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	statetest.WantOpenFault(t, opening(t, "redisHost", replica.Address), fault.Invalid, "is a replica",
		"address of the master")
}

func TestOpen_Credentials(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret")
	statetest.WantOpenFault(t, opening(t, "redisHost", s.Address), fault.Denied, "requires a password", "redisPassword")
	err := statetest.WantOpenFault(t, opening(t, "redisHost", s.Address, "redisPassword", "wrong-secret"),
		fault.Denied, "refused the user or the password")
	if strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("the error shows the password: %v", err)
	}
	store := opened(t, "redisHost", s.Address, "redisPassword", "secret")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
}

func TestStore_ACLUserWithDocumentedCommands(t *testing.T) {
	s := redistest.Start(t)
	s.Do("acl", "setuser", "shop", "on", ">pass", "~shop||*", "+ping", "+info", "+hmget", "+hget", "+pttl", "+evalsha",
		"+eval", "+hset", "+hdel", "+del", "+persist", "+pexpire", "+scan", "+select", "+wait")
	store := opened(t, "redisHost", s.Address, "redisUsername", "shop", "redisPassword", "pass")
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("shop||k", "1"), state.Write{Key: "shop||ttl",
		Value: []byte("1"),
		TTL:   state.TTL{Set: true, Seconds: 100}}))
	statetest.WantValue(t, store, "shop||k", "1")
	if _, err := store.List(ctx, state.ListRequest{Prefix: "shop||"}); err != nil {
		t.Error(err)
	}
	_, err := store.Delete(ctx, state.DeleteRequest{Key: "shop||k"})
	testutil.Must(t, err)
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("till||k", "1")), fault.Denied, "may not")
	_, err = statetest.Get(ctx, store, "till||k")
	statetest.WantFault(t, err, fault.Denied, "may not")
}

// Redis does not undo the commands of a script. If the ACL user lacks a command that the script calls after a write,
// the value has changed.
func TestStore_ACLUserWithoutALaterCommand(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	for _, missing := range []string{"hdel", "persist", "pexpire", "hset"} {
		s.Do("acl", "setuser", "shop", "reset", "on", ">pass", "~*", "+@all", "-"+missing)
		store := opened(t, "redisHost", s.Address, "redisUsername", "shop", "redisPassword", "pass")
		key := "shop||" + missing
		w := statetest.Put(key, "1")
		if missing == "pexpire" {
			w.TTL = state.TTL{Set: true, Seconds: 100}
		}
		err := statetest.Set(ctx, store, w)
		if missing == "hset" { // the first write of the script
			statetest.WantFault(t, err, fault.Denied, "may not")
			continue
		}
		statetest.WantFault(t, err, fault.Indeterminate, "only a part", "docs/components/state.redis.md")
		statetest.WantValue(t, store, key, "1")
	}
}

func TestStore_RecoversFromCrash(t *testing.T) {
	s := redistest.StartDurable(t)
	store := opened(t, "redisHost", s.Address, "redisMaxRetries", "1")
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "1")))
	s.Kill()
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")), fault.Unavailable, s.Address)
	_, err := statetest.Get(ctx, store, "a||k")
	statetest.WantFault(t, err, fault.Unavailable, s.Address)
	s.Run()
	s.Wait()
	statetest.WantValue(t, store, "a||k", "1")
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "3")))
}

func TestStore_PausedServerMakesWritesIndeterminate(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	s.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")), fault.Indeterminate,
		"may have been applied")
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := statetest.Get(ctx, store, "a||k"); !fault.Is(err, fault.Timeout) && !fault.Is(err,
		fault.Unavailable) {
		t.Errorf("a read of a paused server: %v with code %q", err, fault.CodeOf(err))
	}
	s.Signal(syscall.SIGCONT)
	testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, statetest.Put("a||k", "3")) })
	statetest.WantValue(t, store, "a||k", "3")
}

// With readTimeout -1, a request ends at the deadline of its context, even if it waits for the read of another
// request. Close ends in time too.
func TestStore_PausedServerWithoutReadTimeout(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address, "readTimeout", "-1", "writeTimeout", "-1")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	s.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	const reads = 8
	errs := make(chan error, reads)
	for i := range reads {
		go func() {
			_, err := statetest.Get(ctx, store, fmt.Sprint("a||", i))
			errs <- err
		}()
	}
	for range reads {
		if err := <-errs; !fault.Is(err, fault.Timeout) && !fault.Is(err, fault.Unavailable) {
			t.Errorf("a read of a paused server: %v with code %q", err, fault.CodeOf(err))
		}
	}
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2")), fault.Timeout)
	testutil.Must(t, store.Close())
}

func TestStore_OutOfMemory(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
	store := opened(t, "redisHost", s.Address)
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||small", "1")))
	full := func() error {
		for i := range 100 {
			large := statetest.Put("a||"+strconv.Itoa(i), strings.Repeat("1", 100_000))
			if err := statetest.Set(ctx, store, large, statetest.Put("a||small", "2")); err != nil {
				return err
			}
		}
		return nil
	}
	statetest.WantFault(t, full(), fault.ReadOnly, "no memory left", "maxmemory")
	statetest.WantValue(t, store, "a||small", "2")
	_, err := store.Transact(ctx, state.TransactRequest{Operations: []state.Operation{
		{Kind: state.Remove, Write: state.Write{Key: "a||0"}}, {Kind: state.Remove, Write: state.Write{Key: "a||1"}},
	}})
	testutil.Must(t, err)
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||small", "3")))
}

func TestStore_TooFewReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a replica follows and does not answer")
	}
	master := redistest.Start(t)
	host, port, _ := strings.Cut(master.Address, ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	testutil.Eventually(t, func() error {
		if info := fmt.Sprint(replica.Do("info", "replication")); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	})
	store := opened(t, "redisHost", master.Address, "replicas", "1", "replicaTimeout", "500ms")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1")))
	if item := statetest.WantValue(t, store, "a||k", "1"); item.Level != state.Stale {
		t.Errorf("a server with replicas answers at level %q, want %q", item.Level, state.Stale)
	}
	replica.Signal(syscall.SIGSTOP)
	statetest.WantFault(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "2")), fault.Indeterminate,
		"0 of 1 replicas", "may be lost")
	eventual := state.SetRequest{Items: []state.Write{statetest.Put("a||k", "3")}, Consistency: state.Eventual}
	_, err := store.Set(t.Context(), eventual)
	testutil.Must(t, err)
	err = statetest.Set(t.Context(), store, state.Write{Key: "a||k", Value: []byte("4"), ETag: "other"})
	statetest.WantFault(t, err, fault.Conflict)
	replica.Signal(syscall.SIGCONT)
	testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, statetest.Put("a||k", "5")) })
}

func TestStore_FailsOverWithSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until sentinels take a master for dead")
	}
	master := redistest.Start(t)
	host, port, _ := strings.Cut(master.Address, ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	guard := startSentinel(t, "main", master.Address)
	testutil.Eventually(t, func() error {
		if out := fmt.Sprint(guard.Do("sentinel", "replicas", "main")); !strings.Contains(out, replica.Address) {
			return errors.New(out)
		}
		return nil
	})
	store := opened(t, "redisHost", guard.Address, "failover", "true", "sentinelMasterName", "main", "replicas", "1")
	ctx := t.Context()
	testutil.Eventually(t, func() error { return statetest.Set(ctx, store, statetest.Put("a||k", "before")) })
	master.Kill()
	testutil.Eventually(t, func() error {
		_, err := store.Set(ctx, state.SetRequest{Items: []state.Write{statetest.Put("a||other", "after")}})
		return err
	})
	statetest.WantValue(t, store, "a||k", "before")
	statetest.WantValue(t, store, "a||other", "after")
}

// startSentinel starts a sentinel that watches a master.
func startSentinel(t *testing.T, name, master string) *redistest.Server {
	t.Helper()
	host, port, _ := strings.Cut(master, ":")
	configuration := fmt.Sprintf("sentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %s 500\n"+
		"sentinel failover-timeout %s 5000\n", name, host, port, name, name)
	return redistest.StartWithFile(t, configuration, "--sentinel")
}

// TestStore_NoUpdateIsLostWhileServerRestarts increments a counter with ETag conditions while the server is killed and
// started again.
func TestStore_NoUpdateIsLostWhileServerRestarts(t *testing.T) {
	const writers, restarts, key = 4, 5, "a||counter"
	s := redistest.StartDurable(t)
	store := opened(t, "redisHost", s.Address)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put(key, "0")))
	var certain, maybe atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for ctx.Err() == nil {
				item, err := statetest.Get(t.Context(), store, key)
				if err != nil {
					continue
				}
				n, _ := strconv.Atoi(string(item.Value))
				next := state.Write{Key: key, Value: []byte(strconv.Itoa(n + 1)), ETag: item.ETag}
				err = statetest.Set(t.Context(), store, next)
				switch {
				case err == nil:
					certain.Add(1)
				case fault.Is(err, fault.Indeterminate):
					maybe.Add(1)
				case !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable):
					t.Errorf("a write failed with %v, code %q", err, fault.CodeOf(err))
				}
			}
		})
	}
	for range restarts {
		before := certain.Load()
		testutil.Eventually(t, func() error {
			if certain.Load() < before+50 {
				return errors.New("too few")
			}
			return nil
		})
		s.Kill()
		s.Run()
		s.Wait()
	}
	stop()
	wg.Wait()
	var item state.Item
	testutil.Eventually(t, func() (err error) {
		// After several refused connections, go-redis returns the same error until its probe, once a second,
		// succeeds.
		item, err = statetest.Get(t.Context(), store, key)
		return err
	})
	n, err := strconv.ParseInt(string(item.Value), 10, 64)
	testutil.Must(t, err)
	if n < certain.Load() || n > certain.Load()+maybe.Load() {
		t.Errorf("the counter is %d after %d acknowledged and %d unknown updates", n, certain.Load(), maybe.Load())
	}
	t.Logf("counter %d, acknowledged %d, unknown %d", n, certain.Load(), maybe.Load())
}

// If Redis refuses the password of a new connection, the library sends no command of the pipeline.
func TestStore_ChangedPasswordIsDenied(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret")
	store := opened(t, "redisHost", s.Address, "redisPassword", "secret", "redisMaxRetries", "-1")
	strict := opened(t, "redisHost", s.Address, "redisPassword", "secret", "replicas", "1", "redisMaxRetries", "-1")
	admin := goredis.NewClient(&goredis.Options{Addr: s.Address, Password: "secret", Protocol: 2})
	t.Cleanup(func() { _ = admin.Close() })
	ctx := t.Context()
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "1")))
	testutil.Must(t, admin.ConfigSet(ctx, "requirepass", "other").Err())
	kill := func() { testutil.Must(t, admin.Do(ctx, "client", "kill", "type", "normal").Err()) }
	for name, call := range map[string]func() error{
		"get": func() error { _, err := statetest.Get(ctx, store, "a||k"); return err },
		"bulk get": func() error {
			_, err := store.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"a||k", "a||b"}})
			return err
		},
		"list": func() error { _, err := store.List(ctx, state.ListRequest{Prefix: "a||"}); return err },
		"save": func() error { return statetest.Set(ctx, store, statetest.Put("a||k", "2")) },
		"save with replicas": func() error {
			_, err := strict.Set(ctx, state.SetRequest{Items: []state.Write{statetest.Put("a||k", "2")},
				Consistency: state.Strong})
			return err
		},
	} {
		kill()
		t.Run(name, func(t *testing.T) {
			statetest.WantFault(t, call(), fault.Denied, "refused the user or the password")
		})
	}
}
