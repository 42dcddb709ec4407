package raftfsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// damageValue changes a stored value on the disk of a stopped node.
func damageValue(t *testing.T, dir, from, to string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "groups", "0", "db-*"))
	must(t, err)
	db, err := pebble.Open(found[len(found)-1], &pebble.Options{})
	must(t, err)
	it, err := db.NewIter(nil)
	must(t, err)
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if k := bytes.Clone(it.Key()); k[0] == 2 && bytes.Contains(it.Value(), []byte(from)) {
			n++
			must(t, db.Set(k, bytes.ReplaceAll(it.Value(), []byte(from), []byte(to)), pebble.Sync))
		}
	}
	must(t, errors.Join(it.Close(), db.Flush(), db.Close()))
	if n == 0 {
		t.Fatal("the value is not in the database")
	}
}

// closedState is a Peers that refuses requests for the state of other servers until the channel open is closed. Until
// then, a replica in doubt does not recover.
type closedState struct {
	peercalls.Peers
	open chan struct{}
}

func (p closedState) Call(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	if method == peercalls.MethodState {
		select {
		case <-p.open:
		default:
			return nil, fault.New(fault.Unavailable, "test.Call", "no state is sent yet")
		}
	}
	return p.Peers.Call(ctx, server, method, payload)
}

// This test sends state comparisons and the state itself through the calls between nodes. A follower detects that its
// data is damaged. It returns nothing of that data, and reads at other servers until it has the state of one of them.
func TestDoubt_DamagedFollowerReadsElsewhereUntilReinstalled(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { dirs[o.NodeID] = o.Dir })
	lead := c.leader()
	set(t, lead.Store("", "s"), "app||k", "true", state.Strong)
	bad := c.others(lead)[0]
	get(t, bad.Store("", "s"), "app||k", state.Strong) // waits until the server has applied the write
	must(t, bad.Groups()[0].Snapshot())
	id := bad.Identity()
	c.mu.Lock()
	c.hosts[id.Server] = nil
	c.mu.Unlock()
	closeHost(t, bad)
	damageValue(t, dirs[id.Node], "true", "lies")
	var i int
	_, err := fmt.Sscanf(id.Node, "n%d", &i)
	must(t, err)
	open := make(chan struct{})
	var registry *prometheus.Registry
	bad = c.add(i, func(o *raftfsm.Options) {
		o.Dir, o.Bootstrap, o.Peers = dirs[id.Node], false, closedState{o.Peers, open}
		o.Timing.FirstVerify, o.Timing.Compare = 10*time.Millisecond, 200*time.Millisecond
		registry = o.Registerer.(*prometheus.Registry)
	})
	g := bad.Groups()[0]
	eventually(t, func() error {
		if g.Doubt() == nil {
			return errors.New("the damage is not detected yet")
		}
		return nil
	})
	if err := bad.Ready(0); err == nil {
		t.Error("a server whose state is in doubt is ready")
	}
	readsElsewhere(t, bad, registry)
	close(open)
	eventually(t, func() error { return bad.Ready(0) })
	if st := g.Status(); st.Doubt != nil || st.Damaged {
		t.Errorf("the server is ready although its status is %+v", st)
	}
	s := bad.Store("", "s")
	set(t, s, "app||k", "more", state.Strong)
	before := counter(t, registry, "quorate_store_reads_total", "served", "local")
	for _, level := range []state.Consistency{state.Eventual, state.Strong} {
		if got := get(t, s, "app||k", level); string(got.Value) != "more" || got.Level == state.Stale {
			t.Errorf("after the copy the server returned %q at %s", got.Value, got.Level)
		}
	}
	if now := counter(t, registry, "quorate_store_reads_total", "served", "local"); now != before+2 {
		t.Errorf("after the copy %v of 2 reads were served locally", now-before)
	}
}

// readsElsewhere reads and writes at a server whose state is in doubt.
func readsElsewhere(t *testing.T, bad *raftfsm.Host, registry *prometheus.Registry) {
	t.Helper()
	s := bad.Store("", "s")
	for round := range 20 {
		value := "true"
		if round > 0 { // the next eventual read must see it, whichever server answers
			value = fmt.Sprint(round)
			set(t, s, "app||k", value, state.Eventual)
		}
		for _, level := range []state.Consistency{state.Eventual, state.Strong} {
			got := get(t, s, "app||k", level)
			if string(got.Value) != value || got.Level == state.Stale {
				t.Errorf("round %d: a %s read gave %q at %s, not %q", round, level, got.Value, got.Level, value)
			}
		}
	}
	many, err := s.BulkGet(within(t, 10*time.Second), state.BulkGetRequest{Keys: []string{"app||k", "app||none"}})
	if err != nil || len(many) != 2 || string(many[0].Value) != "19" || many[1].Found() {
		t.Errorf("a read of two keys gave %v, %v", many, err)
	}
	if n := counter(t, registry, "quorate_store_reads_total", "served", "local"); n != 0 {
		t.Errorf("%v reads were served by a replica in doubt", n)
	}
	if bad.Groups()[0].Doubt() == nil {
		t.Error("the doubt ended before the state was replaced")
	}
	// Another node may read at this server only if it has a replica that is trusted.
	query := []byte{1, 0, 0, 0, 0, 0, 0, 1, 1, 's', 1, 1, 'k'}
	if _, err := bad.Serve(t.Context(), peercalls.MethodRead, query); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a read of another node at a server in doubt gave %v", err)
	}
}
