package raftfsm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
)

func TestFreshness_FollowerCallsLeaderOnlyWhenTooOld(t *testing.T) {
	t.Parallel()
	registries := map[string]*prometheus.Registry{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { registries[o.NodeID] = o.Registerer.(*prometheus.Registry) })
	follower := c.others(c.leader())[0]
	eventually(t, func() error { return follower.Ready(0) })
	s, reg := follower.Store("", "s"), registries[follower.Identity().Node]
	set(t, s, "app||k", "v", state.Strong)
	read := func(bound time.Duration) state.Item {
		t.Helper()
		got, err := s.Get(t.Context(), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{MaxStaleness: bound}})
		if err != nil || got.Level != state.Bounded || got.Age < 0 || got.Age > bound {
			t.Fatalf("bound %s: %s, age %s, %v", bound, got.Level, got.Age, err)
		}
		return got
	}
	asked := func() float64 { return counter(t, reg, "quorate_store_forwards_total", "kind", "read_index") }
	read(time.Minute)
	before := asked()
	for range 50 {
		read(time.Minute)
	}
	if now := asked(); now != before {
		t.Errorf("50 reads within the bound caused %v calls to the leader", now-before)
	}
	<-time.After(5 * time.Millisecond)
	read(time.Millisecond)
	if now := asked(); now == before {
		t.Error("a read beyond the bound did not call the leader")
	}
	if got := get(t, s, "app||k", state.Eventual); got.Age < 0 {
		t.Error("an eventual read has no age")
	}
}

func TestFreshness_CutOffFollowerAndDeposedLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	bounded := func(h *raftfsm.Host) (state.Item, error) {
		return h.Store("", "s").Get(within(t, 300*time.Millisecond), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{MaxStaleness: time.Millisecond}})
	}
	set(t, lead.Store("", "s"), "app||k", "v", state.Strong)
	get(t, follower.Store("", "s"), "app||k", state.Strong)
	c.isolate(follower.Identity().Server)
	<-time.After(20 * time.Millisecond)
	got := get(t, follower.Store("", "s"), "app||k", state.Eventual)
	if got.Age < 20*time.Millisecond {
		t.Errorf("age %s of a follower that was cut off for longer", got.Age)
	}
	if _, err := bounded(follower); err == nil {
		t.Error("a follower that was cut off served a read within the bound")
	}
	c.heal()
	c.isolate(lead.Identity().Server)
	c.leader(lead.Identity().Server)
	if got, err := bounded(lead); err == nil {
		t.Errorf("a deposed leader served a read within the bound: %+v", got)
	}
}

func TestEventualReads_WithoutQuorumKeepSessionAndAreCounted(t *testing.T) {
	t.Parallel()
	registries := map[string]*prometheus.Registry{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { registries[o.NodeID] = o.Registerer.(*prometheus.Registry) })
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	reg := registries[follower.Identity().Node]
	counted := func() float64 { return counter(t, reg, "quorate_store_reads_without_leader_total", "", "") }
	set(t, lead.Store("", "s"), "app||k", "v", state.Strong)
	get(t, follower.Store("", "s"), "app||k", state.Strong)
	if n := counted(); n != 0 {
		t.Fatalf("%v reads are counted while there is a leader", n)
	}
	c.isolate(follower.Identity().Server)
	eventually(t, func() error {
		if follower.Leader(0) != "" {
			return errors.New("it still knows a leader")
		}
		return nil
	})
	first := get(t, follower.Store("", "s"), "app||k", state.Eventual)
	<-time.After(5 * time.Millisecond)
	second := get(t, follower.Store("", "s"), "app||k", state.Eventual)
	if first.Level != state.SessionLevel || second.Level != state.SessionLevel || first.Age < 0 ||
		second.Age < first.Age+5*time.Millisecond {
		t.Errorf("levels %s and %s, ages %s and %s", first.Level, second.Level, first.Age, second.Age)
	}
	if n := counted(); n != 2 {
		t.Errorf("%v reads are counted, not 2", n)
	}
	// The follower lacks what another node has written since. So a session that has seen this write gets no guarantee.
	set(t, lead.Store("", "s"), "app||k", "w", state.Strong)
	seen := get(t, lead.Store("", "s"), "app||k", state.Strong)
	got, err := follower.Store("", "s").Get(t.Context(), state.GetRequest{Key: "app||k",
		ReadOptions: state.ReadOptions{Session: seen.Session}})
	if err != nil || got.Level != state.Stale {
		t.Errorf("a session that has seen more: %s, %v", got.Level, err)
	}
	if n := counter(t, reg, "quorate_store_stale_reads_total", "reason", "no_quorum"); n != 1 {
		t.Errorf("%v stale reads are counted", n)
	}
}
