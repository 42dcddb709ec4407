package raftfsm_test

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
)

// usage is what this process has.
type usage struct {
	goroutines int
	heap       uint64
}

func used() usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{runtime.NumGoroutine(), m.HeapAlloc}
}

// sidecars is how many there are: a thousand, or fewer where the system allows fewer open
// files; each of them locks its directory.
func sidecars(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if limit.Cur < 1500 {
		n := int(limit.Cur / 2) //nolint:gosec // small
		t.Logf("%d sidecars: a process may open %d files here", n, limit.Cur)
		return n
	}
	return 1000
}

// The hosts are the product's, servers with their files and sidecars, in virtual time; calls
// between them go through memory, and gossip tells of all servers that run. Sockets,
// encryption and gossip itself are not in here.
func TestAThousandSidecarsGoOnWhenTheLeaderOfFiveServersIsLost(t *testing.T) {
	many, start := sidecars(t), time.Now()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 5, func(o *raftfsm.Options) {
			o.Timing = group.Timing{Commit: 100 * time.Millisecond}
		})
		old := c.leader().Identity()
		before := used()
		sides := make([]*raftfsm.Host, many)
		for i := range sides {
			o := options(t, t.TempDir())
			o.NodeID, o.Bootstrap, o.Sidecar, o.Registerer = fmt.Sprintf("side%d", i), false, true, prometheus.NewRegistry()
			o.Peers, o.Servers = &network{c: c, self: raftfsm.SidecarID(o.NodeID)}, c.servers
			sides[i] = open(t, o)
			must(t, sides[i].Adopt(old.Cluster, 0))
		}
		each := func(what string, f func(i int, h *raftfsm.Host)) {
			var wg sync.WaitGroup
			begun := time.Now()
			for i, h := range sides {
				wg.Go(func() { f(i, h) })
			}
			wg.Wait()
			t.Logf("%s: within %s", what, time.Since(begun).Round(time.Millisecond))
		}
		save := func(value string) func(int, *raftfsm.Host) {
			return func(i int, h *raftfsm.Host) {
				s, key, ctx := h.Store("", "s"), fmt.Sprintf("app||%d", i), within(t, 2*time.Minute)
				if _, err := s.Set(ctx, state.SetRequest{Items: []state.Write{{Key: key, Value: []byte(value)}}, Consistency: state.Strong}); err != nil {
					t.Errorf("side%d: %v", i, err)
				}
				for _, level := range []state.Consistency{state.Strong, state.Eventual} {
					got, err := s.Get(ctx, state.GetRequest{Key: key, ReadOptions: state.ReadOptions{Consistency: level}})
					if err == nil && got.Level == state.Stale {
						continue // while nobody leads an eventual read may be, if it says so
					}
					if err != nil || string(got.Value) != value {
						t.Errorf("side%d reads %q, not %q (%v)", i, got.Value, value, err)
					}
				}
			}
		}
		knows := func(_ int, h *raftfsm.Host) {
			eventually(t, func() error {
				if h.Partitions() == 0 {
					return fmt.Errorf("%s has reached no server", h.Identity().Node)
				}
				return h.Ready(0)
			})
		}
		each("all know the leader", knows)
		each("all write and read", save("before"))
		after := used()
		t.Logf("a sidecar has %d goroutines and %d KiB of heap, of this process", (after.goroutines-before.goroutines)/many, (int64(after.heap)-int64(before.heap))/int64(many)>>10) //nolint:gosec // far below 2^63

		c.isolate(old.Server)
		for _, h := range sides {
			c.apartFrom(h.Identity().Server, old.Server)
		}
		each("after the loss of the leader all write and read", save("after"))
		each("all know the new leader", knows)
		for i, h := range sides {
			if lead := h.Route(0).Leader; string(lead) == old.Server {
				t.Errorf("side%d still takes %s for the leader", i, old.Node)
			}
		}
	})
	t.Logf("all of it took %s", time.Since(start).Round(time.Millisecond))
}
