package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// addReplicas adds a replica to each master of a cluster.
func addReplicas(t *testing.T, masters []*redistest.Server) {
	t.Helper()
	for _, master := range masters {
		replica := redistest.LaunchMember(t, "--repl-diskless-sync-delay", "0")
		replica.Wait()
		replica.Meet(masters[0])
		id := master.Do("cluster", "myid")
		testutil.Eventually(t, func() error {
			return replica.Admin.Do(t.Context(), "cluster", "replicate", id).Err()
		})
		testutil.Eventually(t, func() error {
			info, err := replica.Admin.Info(t.Context(), "replication").Result()
			if err == nil && !strings.Contains(info, "master_link_status:up") {
				err = errors.New(info)
			}
			return err
		})
	}
}

// masterOf returns the server that has the slot of a name.
func masterOf(t *testing.T, all []*redistest.Server, name string) *redistest.Server {
	t.Helper()
	shards, err := all[0].Admin.ClusterShards(t.Context()).Result()
	testutil.Must(t, err)
	at := int64(redis.SlotOf(name))
	for _, shard := range shards {
		if !slices.ContainsFunc(shard.Slots, func(r goredis.SlotRange) bool { return r.Start <= at && at <= r.End }) {
			continue
		}
		for _, node := range shard.Nodes {
			for _, s := range all {
				if node.Role == "master" && s.Address == net.JoinHostPort(node.IP, strconv.FormatInt(node.Port, 10)) {
					return s
				}
			}
		}
	}
	t.Fatalf("no server has the slot of %s", name)
	return nil
}

// counter is a key that several writers increment with ETags. certain counts acknowledged updates, and maybe counts
// indeterminate ones.
type counter struct {
	key            string
	certain, maybe atomic.Int64
}

// count increments the counter until ctx ends.
func (c *counter) count(ctx context.Context, t *testing.T, store state.Store) {
	for ctx.Err() == nil {
		item, err := statetest.Get(t.Context(), store, c.key)
		if err != nil {
			continue
		}
		n, _ := strconv.Atoi(string(item.Value))
		next := state.Write{Key: c.key, Value: []byte(strconv.Itoa(n + 1)), ETag: item.ETag}
		err = statetest.Set(t.Context(), store, next)
		switch {
		case err == nil:
			c.certain.Add(1)
		case fault.Is(err, fault.Indeterminate):
			c.maybe.Add(1)
		case !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable):
			t.Errorf("a write failed with %v, code %q", err, fault.CodeOf(err))
		}
	}
}

// more waits for n more acknowledged updates.
func (c *counter) more(t *testing.T, n int64) {
	t.Helper()
	goal := c.certain.Load() + n
	testutil.Eventually(t, func() error {
		if now := c.certain.Load(); now < goal {
			return fmt.Errorf("%s: %d updates, waiting for %d", c.key, now, goal)
		}
		return nil
	})
}

// check compares the value of the counter with the number of acknowledged updates.
func (c *counter) check(t *testing.T, store state.Store) {
	t.Helper()
	var item state.Item
	testutil.Eventually(t, func() (err error) {
		item, err = statetest.Get(t.Context(), store, c.key)
		return err
	})
	n, err := strconv.ParseInt(string(item.Value), 10, 64)
	testutil.Must(t, err)
	if n < c.certain.Load() || n > c.certain.Load()+c.maybe.Load() {
		t.Errorf("%s is %d after %d acknowledged and %d unknown updates", c.key, n, c.certain.Load(), c.maybe.Load())
	}
	t.Logf("%s: %d, acknowledged %d, unknown %d", c.key, n, c.certain.Load(), c.maybe.Load())
}

// TestStore_ClusterFailsOver kills a master under load. No update that a replica has acknowledged is lost.
func TestStore_ClusterFailsOver(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a cluster takes a master for dead")
	}
	all := redistest.StartCluster(t)
	addReplicas(t, all)
	store := opened(t, "redisHost", redistest.Addresses(all), "redisType", "cluster", "clusterHashTags", "true",
		"replicas", "1")
	counters := []*counter{{key: "a||n"}, {key: "b||n"}, {key: "c||n"}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for _, c := range counters {
		testutil.Eventually(t, func() error { return statetest.Set(ctx, store, statetest.Put(c.key, "0")) })
		for range 2 {
			wg.Go(func() { c.count(ctx, t, store) })
		}
	}
	first := counters[0]
	first.more(t, 50)
	master := masterOf(t, all, "{a}||n")
	master.Kill()
	testutil.Eventually(t, func() error { // the replica answers, but has no replica of its own
		_, err := store.Set(ctx, state.SetRequest{Items: []state.Write{statetest.Put("a||other", "1")}})
		return err
	})
	master.Run() // it follows the new master
	for _, c := range counters {
		c.more(t, 50)
	}
	stop()
	wg.Wait()
	for _, c := range counters {
		c.check(t, store)
	}
}

// reshard moves a slot from one master to another, some keys at a time. It calls between after each group of keys.
func reshard(t *testing.T, all []*redistest.Server, slot int, from, to *redistest.Server, between func()) {
	t.Helper()
	source, target := from.Do("cluster", "myid"), to.Do("cluster", "myid")
	to.Do("cluster", "setslot", slot, "importing", source)
	from.Do("cluster", "setslot", slot, "migrating", target)
	host, port, _ := net.SplitHostPort(to.Address)
	for {
		keys := from.Do("cluster", "getkeysinslot", slot, 5).([]any)
		if len(keys) == 0 {
			break
		}
		from.Do(append([]any{"migrate", host, port, "", 0, 5000, "keys"}, keys...)...)
		between()
	}
	to.Do("cluster", "setslot", slot, "node", target)
	from.Do("cluster", "setslot", slot, "node", target)
	for _, s := range all {
		s.Do("cluster", "setslot", slot, "node", target)
	}
}

// TestStore_ClusterIsReshardedUnderLoad moves the slot of an application, with and without waiting for replicas.
func TestStore_ClusterIsReshardedUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six servers and moves a slot several times")
	}
	for name, pairs := range map[string][]string{"OneServer": nil, "WithReplicas": {"replicas", "1"}} {
		t.Run(name, func(t *testing.T) {
			all := redistest.StartCluster(t)
			if pairs != nil {
				addReplicas(t, all)
			}
			store := opened(t, append(pairs, "redisHost", redistest.Addresses(all), "redisType", "cluster",
				"clusterHashTags", "true")...)
			for i := range 60 {
				testutil.Eventually(t, func() error {
					return statetest.Set(t.Context(), store, statetest.Put("a||filler "+strconv.Itoa(i), "1"))
				})
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var transactions sync.WaitGroup
			transactions.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					value := strconv.Itoa(i)
					err := transact(t.Context(), store, statetest.Put("a||x", value), statetest.Put("a||y", value))
					if err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Indeterminate) {
						t.Errorf("a transaction failed: %v", err)
					}
				}
			})
			r := statetest.Record(t, store, "a||1", "a||2", "a||3", "b||1", "c||1")
			slot := redis.SlotOf("{a}||")
			for range 3 {
				r.More(100)
				from := masterOf(t, all, "{a}||")
				to := all[0]
				if to == from {
					to = all[1]
				}
				reshard(t, all, slot, from, to, func() { r.More(20) })
			}
			r.More(100)
			stop()
			transactions.Wait()
			r.Check()
			x, err := statetest.Get(t.Context(), store, "a||x")
			testutil.Must(t, err)
			statetest.WantValue(t, store, "a||y", string(x.Value))
			for i := range 60 {
				statetest.WantValue(t, store, "a||filler "+strconv.Itoa(i), "1")
			}
		})
	}
}

func TestOpen_WarnsOfAClusterThatIsTakenForOneServer(t *testing.T) {
	all := redistest.StartCluster(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, c := range []struct {
		pairs []string
		want  bool
	}{
		{[]string{"redisHost", all[0].Address}, true},
		{[]string{"redisHost", all[0].Address, "redisType", "cluster"}, false},
		{[]string{"redisHost", redistest.Start(t).Address}, false},
	} {
		log.Reset()
		s, err := open(t, redis.Options{Metadata: metadata(t, c.pairs...), Logger: logger})
		testutil.Must(t, err)
		testutil.Must(t, s.Close())
		if got := strings.Contains(log.String(), "one of a Redis Cluster"); got != c.want {
			t.Errorf("%v: %s", c.pairs, &log)
		}
	}
}
