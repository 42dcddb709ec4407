package api

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// lagging is a watch that has delivered everything up to pos.
type lagging struct {
	state.Watch
	newest, pos uint64
}

func (l lagging) Newest() uint64           { return l.newest }
func (l lagging) Position() state.Position { return state.Position{Revision: l.pos} }

func TestWatches_LagIsThatOfTheSlowestWatcher(t *testing.T) {
	w := NewWatches()
	reg := prometheus.NewRegistry()
	reg.MustRegister(w.Collectors()...)
	value := func() (out []float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "quorate_watch_lag_revisions" {
				for _, m := range f.GetMetric() {
					out = append(out, m.GetGauge().GetValue())
				}
			}
		}
		return out
	}
	if got := value(); len(got) > 0 {
		t.Errorf("without a watch there are %d series", len(got))
	}
	var entries []*watchEntry
	for _, pos := range []uint64{9, 4, 12} { // the last one is ahead of the newest known revision
		e, failure := w.enter(nil, "statestore")
		if failure != nil {
			t.Fatal(failure)
		}
		e.watch(lagging{newest: 10, pos: pos})
		entries = append(entries, e)
	}
	if got := value(); len(got) != 1 || got[0] != 6 {
		t.Errorf("lag %v, want 6", got)
	}
	entries[1].pos.Store(10)
	if got := value(); len(got) != 1 || got[0] != 1 {
		t.Errorf("lag %v, want 1", got)
	}
	for _, e := range entries {
		e.leave(endClient)
	}
	if got := value(); len(got) > 0 {
		t.Errorf("after the last watch there are %d series", len(got))
	}
}

// EndOf returns a position only if the client can continue the watch from it.
func TestWatch_EndHasAPositionOnlyIfTheWatchCanContinue(t *testing.T) {
	w := &Watch{watch: lagging{pos: 7}, inst: &state.Instance{Name: "statestore"}}
	for reason, want := range map[string]string{
		state.WatchClosing: "7", state.WatchSlow: "7", state.WatchMoved: "", state.WatchCompacted: "",
		state.WatchRestored: "",
	} {
		if _, got, resume := w.EndOf(&state.WatchEnd{Reason: reason}); got != reason || resume != want {
			t.Errorf("%s: %s, %q", reason, got, resume)
		}
	}
}

// parts is a watch that delivers its parts and then fails.
type parts struct {
	lagging
	list []state.WatchPart
}

func (p *parts) Next(context.Context, time.Duration) (part state.WatchPart, err error) {
	if len(p.list) == 0 {
		return part, fault.New(fault.Corrupt, "test", "the value was damaged")
	}
	part, p.list = p.list[0], p.list[1:]
	return part, nil
}

// EndOf returns no position while the snapshot is incomplete. A client that continued from it would never get the
// missing items.
func TestWatch_EndHasNoPositionWithinASnapshot(t *testing.T) {
	item := state.Change{Item: state.Item{Key: "shop||k", Value: []byte("1")}}
	within := state.WatchPart{Items: []state.Change{item}}
	synced := state.WatchPart{Items: []state.Change{item}, Synced: true, Seen: 7}
	for name, c := range map[string]struct {
		snapshot bool
		list     []state.WatchPart
		want     string
	}{
		"no snapshot":       {false, nil, "7"},
		"before its items":  {true, nil, ""},
		"within its items":  {true, []state.WatchPart{within}, ""},
		"complete snapshot": {true, []state.WatchPart{within, synced}, "7"},
		"after a change":    {true, []state.WatchPart{synced, {Seen: 7}}, "7"},
	} {
		all := NewWatches()
		entry, failure := all.enter(nil, "statestore")
		if failure != nil {
			t.Fatal(failure)
		}
		w := &Watch{watch: &parts{lagging{pos: 7}, c.list}, inst: &state.Instance{Name: "statestore"}, app: "shop",
			entry: entry, snapshot: c.snapshot}
		var err error
		for err == nil {
			_, err = w.Next(t.Context())
		}
		if _, _, resume := w.EndOf(err); resume != c.want {
			t.Errorf("%s: resume is %q, want %q", name, resume, c.want)
		}
		w.endContext()
	}
}
