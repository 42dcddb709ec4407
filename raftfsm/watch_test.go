package raftfsm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
)

func watching(t *testing.T, s *raftfsm.Store, r state.WatchRequest) state.Watch {
	t.Helper()
	var w state.Watch
	eventually(t, func() (err error) {
		w, err = s.Watch(within(t, 10*time.Second), r)
		return err
	})
	return w
}

// seenChange returns the part of a change that tests compare.
func seenChange(c *state.Change) string {
	if c.Deleted {
		return strings.TrimPrefix(c.Key, "app||") + " gone"
	}
	return strings.TrimPrefix(c.Key, "app||") + "=" + string(c.Value)
}

// collect reads changes until there are n.
func collect(t *testing.T, w state.Watch, n int) (seen []string, end error) {
	t.Helper()
	ctx := within(t, time.Minute)
	for len(seen) < n {
		part, err := w.Next(ctx, time.Second)
		if err != nil {
			return seen, err
		}
		for i := range part.Changes {
			seen = append(seen, seenChange(&part.Changes[i]))
		}
	}
	return seen, nil
}

func TestWatch_DeliversChangesOnEveryNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	lead := c.leader()
	set(t, lead.Store("", "s"), "app||old", "0", state.Strong)
	var all []state.Watch
	for _, h := range c.running() {
		w := watching(t, h.Store("", "s"), state.WatchRequest{Prefix: "app||"})
		defer w.Close()
		all = append(all, w)
	}
	s := lead.Store("", "s")
	set(t, s, "app||a", "1", state.Strong)
	set(t, s, "other||a", "1", state.Strong)
	if _, err := s.Delete(t.Context(), state.DeleteRequest{Key: "app||a"}); err != nil {
		t.Fatal(err)
	}
	set(t, s, "app||a", "2", state.Eventual)
	for i, w := range all {
		got, err := collect(t, w, 3)
		if d := cmp.Diff([]string{"a=1", "a gone", "a=2"}, got); d != "" || err != nil {
			t.Errorf("watch %d: %v\n%s", i, err, d)
		}
	}
}

func TestWatch_OnSidecar(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	s, lead := side.Store("", "s"), c.leader().Store("", "s")
	for i := range 3 {
		set(t, lead, fmt.Sprint("app||", i), "x", state.Strong)
	}
	w := watching(t, s, state.WatchRequest{Prefix: "app||", Snapshot: true})
	defer w.Close()
	items := 0
	for synced := false; !synced; {
		part, err := w.Next(within(t, time.Minute), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		items += len(part.Items)
		synced = part.Synced
	}
	if items != 3 {
		t.Errorf("the snapshot had %d items", items)
	}
	set(t, lead, "app||a", "1", state.Strong)
	if got, err := collect(t, w, 1); err != nil || got[0] != "a=1" {
		t.Errorf("got %v, %v", got, err)
	}
}

// The list of changes that a watcher collects, on changing nodes and through changes of leadership and stops of nodes,
// is exactly the list of acknowledged writes.
func TestWatch_HasEveryWriteOnceThroughFailures(t *testing.T) {
	t.Parallel()
	writes := 10_000
	if testing.Short() {
		writes = 1_000
	}
	c := startCluster(t, 3, nil)
	writer := c.leader()
	var done []string
	finished := make(chan struct{})
	w := watching(t, writer.Store("", "s"), state.WatchRequest{Prefix: "app||"})
	go func() {
		defer close(finished)
		s := writer.Store("", "s")
		for i := range writes {
			// a write whose outcome is unknown is repeated with its id, so it is applied once
			r := state.SetRequest{Consistency: state.Strong, RequestID: fmt.Sprint("w", i),
				Items: []state.Write{{Key: fmt.Sprint("app||", i%7), Value: fmt.Appendf(nil, "%d", i)}}}
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				_, err := s.Set(ctx, r)
				cancel()
				if err == nil {
					break
				}
				if t.Context().Err() != nil {
					return
				}
			}
			done = append(done, fmt.Sprintf("%d=%d", i%7, i))
		}
	}()
	var got []string
	hosts := c.running()
	for round := 0; len(got) < writes; round++ {
		part, err := collectSome(t, w, writes/20)
		for i := range part {
			got = append(got, seenChange(&part[i]))
		}
		var end *state.WatchEnd
		if err != nil && !errors.As(err, &end) {
			t.Fatal(err)
		}
		position := w.Position()
		w.Close()
		switch round % 4 {
		case 1: // another leader
			for _, h := range c.running() {
				if g := h.Groups()[0]; g.Leading() {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					_ = g.Transfer(ctx, "") // may fail on a busy machine
					cancel()
				}
			}
		case 3: // a server without links for a while
			id := c.leader().Identity().Server
			c.isolate(id)
			<-time.After(300 * time.Millisecond)
			c.heal()
		}
		w = watching(t, hosts[round%len(hosts)].Store("", "s"), state.WatchRequest{Prefix: "app||", From: position,
			Resume: true})
	}
	w.Close()
	<-finished
	if d := cmp.Diff(done, got); d != "" {
		t.Errorf("the changes differ from the %d acknowledged writes:\n%.2000s", len(done), d)
	}
}

// collectSome reads until there are n changes, or none come for a while.
func collectSome(t *testing.T, w state.Watch, n int) (out []state.Change, err error) {
	t.Helper()
	ctx := within(t, time.Minute)
	for len(out) < n {
		part, err := w.Next(ctx, time.Second)
		if err != nil || len(part.Changes) == 0 {
			return out, err
		}
		out = append(out, part.Changes...)
	}
	return out, nil
}

func TestWatch_EndsWithARestore(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	s := h.Store("", "s")
	set(t, s, "app||a", "1", state.Strong)
	data := save(t, h)
	w := watching(t, s, state.WatchRequest{Prefix: "app||"})
	defer w.Close()
	restore(t, h, data)
	_, err := collect(t, w, 1)
	var end *state.WatchEnd
	if !errors.As(err, &end) || end.Reason != state.WatchRestored {
		t.Errorf("the watch ended with %v", err)
	}
	_, err = s.Watch(t.Context(), state.WatchRequest{Prefix: "app||", From: w.Position(), Resume: true})
	if !errors.As(err, &end) || end.Reason != state.WatchCompacted {
		t.Errorf("the old position gave %v", err)
	}
}

func TestWatch_RefusesPositionsItCannotServe(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	s := h.Store("", "s").KeepHistory(state.HistoryBounds{Bytes: 4 << 10})
	w := watching(t, s, state.WatchRequest{Prefix: "app||"})
	defer w.Close()
	for range 100 {
		set(t, s, "app||a", strings.Repeat("x", 100), state.Strong)
	}
	_, err := s.Watch(t.Context(), state.WatchRequest{Prefix: "app||", From: w.Position(), Resume: true})
	var end *state.WatchEnd
	if !errors.As(err, &end) || end.Reason != state.WatchCompacted || end.Oldest == 0 || end.Current < end.Oldest {
		t.Errorf("a compacted position gave %v, %+v", err, end)
	}
	_, err = s.Watch(t.Context(), state.WatchRequest{Prefix: "app||", Resume: true,
		From: state.Position{Cluster: "00000000", Revision: 1}})
	if err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("a foreign position gave %v", err)
	}
}

// A server that has restarted knows none of its earlier scans. It must not continue one with the items of another
// scan.
func TestWatch_SnapshotDoesNotContinueAfterRestartOfServer(t *testing.T) {
	t.Parallel()
	var o raftfsm.Options
	c := startCluster(t, 1, func(own *raftfsm.Options) { o = *own })
	side, _ := c.sidecar("side")
	s, lead := side.Store("", "s"), c.leader()
	for i := range 4 { // several pages
		for _, app := range []string{"app||", "other||"} {
			set(t, lead.Store("", "s"), fmt.Sprint(app, i), strings.Repeat("x", 200<<10), state.Strong)
		}
	}
	w := watching(t, s, state.WatchRequest{Prefix: "app||", Snapshot: true})
	defer w.Close()
	seen := map[string]bool{}
	next := func(w state.Watch) (synced bool, err error) {
		part, err := w.Next(within(t, time.Minute), time.Second)
		for _, i := range part.Items {
			seen[i.Key] = true
		}
		return part.Synced, err
	}
	if synced, err := next(w); synced || err != nil || len(seen) == 0 {
		t.Fatalf("%d items, %t, %v", len(seen), synced, err)
	}
	c.stop(lead)
	o.Bootstrap = false
	_, _, err := c.startAnew(t, o)
	must(t, err)
	other := watching(t, s, state.WatchRequest{Prefix: "other||", Snapshot: true})
	defer other.Close()
	if _, err := other.Next(within(t, time.Minute), time.Second); err != nil {
		t.Fatal(err)
	}
	for synced := false; !synced; {
		if synced, err = next(w); err != nil {
			break
		}
	}
	for key := range seen {
		if !strings.HasPrefix(key, "app||") {
			t.Errorf("the snapshot has the item %s", key)
		}
	}
	if err == nil {
		t.Error("the snapshot was continued")
	}
}
