package raftfsm_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
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

// This test sends state comparisons and the state itself through the calls between nodes. A follower with
// damaged data stops serving once it has detected the damage, and reports the reason. It serves the right
// values after it has received the state of another server.
func TestDoubt_DamagedFollowerServesNothingUntilReinstalled(t *testing.T) {
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
	bad = c.add(i, func(o *raftfsm.Options) {
		o.Dir, o.Bootstrap = dirs[id.Node], false
		o.Timing.FirstVerify, o.Timing.Compare = 10*time.Millisecond, 200*time.Millisecond
	})
	s, refused, deadline := bad.Store("", "s"), false, time.Now().Add(90*time.Second)
	for {
		item, err := s.Get(within(t, 10*time.Second), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{Consistency: state.Eventual}})
		switch {
		case err != nil && !fault.Is(err, fault.Unavailable):
			t.Fatalf("a read at a server whose state is in doubt gave %v", err)
		case err != nil:
			refused = refused || bad.Groups()[0].Doubt() != nil
		case string(item.Value) == "true":
			eventually(t, func() error { return bad.Ready(0) })
			if st := bad.Groups()[0].Status(); st.Doubt != nil || st.Damaged {
				t.Errorf("the server answered although its status is %+v", st)
			}
			set(t, s, "app||k", "more", state.Strong)
			if got := get(t, s, "app||k", state.Strong); string(got.Value) != "more" {
				t.Errorf("after the copy the server returned %q", got.Value)
			}
			return
		case refused:
			t.Fatalf("the server returned %q after its doubt began", item.Value)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server still returns %q, %v; doubt %+v", item.Value, err, bad.Groups()[0].Doubt())
		}
	}
}
