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
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
)

// usage is the resource usage of this process.
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

// sidecars returns how many sidecars to run: a thousand, or fewer if the system allows fewer open files. Each
// sidecar locks its directory.
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

// The hosts are real: servers with their files, and sidecars, in virtual time. Calls between them use memory, and
// every running server counts as alive. Sockets, encryption and gossip are not part of the test.
func TestSimulation_ThousandSidecarsSurviveLeaderLoss(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("runs a thousand nodes")
	}
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
			o.NodeID, o.Bootstrap, o.Sidecar, o.Registerer = fmt.Sprintf("side%d", i), false, true,
				prometheus.NewRegistry()
			o.Peers, o.Cluster = &network{c: c, self: raftfsm.SidecarID(o.NodeID)}, c
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
				if _, err := s.Set(ctx, state.SetRequest{Items: []state.Write{{Key: key, Value: []byte(value)}},
					Consistency: state.Strong}); err != nil {
					t.Errorf("side%d: %v", i, err)
				}
				for _, level := range []state.Consistency{state.Strong, state.Eventual} {
					got, err := s.Get(ctx, state.GetRequest{Key: key,
						ReadOptions: state.ReadOptions{Consistency: level}})
					if err == nil && got.Level == state.Stale {
						continue // without a leader an eventual read may be stale if it is marked so
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
		heap := (int64(after.heap) - int64(before.heap)) / int64(many) >> 10 //nolint:gosec // far below 2^63
		t.Logf("each sidecar uses %d goroutines and %d KiB of heap", (after.goroutines-before.goroutines)/many, heap)

		c.isolate(old.Server)
		for _, h := range sides {
			c.apartFrom(h.Identity().Server, old.Server)
		}
		each("after the loss of the leader all write and read", save("after"))
		each("all know the new leader", knows)
		for i, h := range sides {
			if lead := h.Route(0).Leader; string(lead) == old.Server {
				t.Errorf("side%d still considers %s the leader", i, old.Node)
			}
		}
	})
	t.Logf("the test took %s", time.Since(start).Round(time.Millisecond))
}
