package kv_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// modelHistory is the reference implementation of a history. It keeps all changes.
type modelHistory struct {
	began      uint64 // revision at which it was switched on
	age, bytes uint64 // the smallest bounds since it began
	until      uint64
	changes    []kv.Change
	stamps     []uint64 // of changes
}

// watch switches a history on or extends it. It returns no floor, because the model does not trim (see learnFloors).
func (m *model) watch(w *command.Watch) {
	k := [2]string{w.Store, w.Prefix}
	h := m.histories[k]
	if h == nil || h.until <= m.clock {
		m.revision++
		h = &modelHistory{began: m.revision, age: w.Age, bytes: w.Bytes}
		m.histories[k] = h
	}
	h.age, h.bytes, h.until = min(h.age, w.Age), min(h.bytes, w.Bytes), m.clock+command.WatchLife
}

// changed records a change. A removal takes a revision.
func (m *model) changed(k [2]string, c kv.Change) {
	h := m.histories[[2]string{k[0], state.PrefixOf(k[1])}]
	if h == nil {
		return
	}
	if c.Deleted {
		m.revision++
		c.Revision = m.revision
	}
	c.Key = k[1]
	h.changes, h.stamps = append(h.changes, c), append(h.stamps, m.clock)
}

// removed records the removal of a key that was stored.
func (m *model) removed(k [2]string) {
	if r, stored := m.rows[k]; stored {
		m.changed(k, kv.Change{Deleted: true, Expired: r.expireAt != 0 && r.expireAt <= m.clock})
		delete(m.rows, k)
	}
}

// endRequest marks the last change of a request in every history. from has the number of changes in each history
// before the request.
func (m *model) endRequest(from map[[2]string]int) {
	for k, h := range m.histories {
		if len(h.changes) > from[k] {
			h.changes[len(h.changes)-1].Last = true
		}
	}
}

func (m *model) lengths() map[[2]string]int {
	n := map[[2]string]int{}
	for k, h := range m.histories {
		n[k] = len(h.changes)
	}
	return n
}

// compareHistories reads every history from several positions and compares it with the model.
func compareHistories(t *testing.T, g *generator, m *model, k *kv.Machine) {
	t.Helper()
	if n, _ := k.Histories(); n != len(m.histories) {
		t.Fatalf("%d histories, the model has %d", n, len(m.histories))
	}
	for key, h := range m.histories {
		floor := compareBounds(t, key, h, k)
		after := floor + g.Uint64N(m.revision-floor+1)
		var got []kv.Change
		for at := after; ; {
			part, err := k.Changes(key[0], key[1], at, pick(g, 1, 500, 1<<20))
			if err != nil || !part.Kept || part.Seen < at || part.Seen > m.revision {
				t.Fatalf("Changes after %d: %+v, %v", at, part, err)
			}
			got = append(got, part.Items...)
			if at = part.Seen; at == m.revision {
				break
			}
		}
		if d := cmp.Diff(h.after(after), got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("changes of %q after %d (-model +machine):\n%s", key, after, d)
		}
	}
}

func (h *modelHistory) after(revision uint64) []kv.Change {
	i, _ := slices.BinarySearchFunc(h.changes, revision+1, func(c kv.Change, r uint64) int {
		return int(c.Revision) - int(r) //nolint:gosec // small numbers
	})
	return h.changes[i:]
}

// compareBounds checks that the machine has trimmed no change that it must keep, and serves no position below the
// floor. It returns the floor.
func compareBounds(t *testing.T, key [2]string, h *modelHistory, k *kv.Machine) uint64 {
	t.Helper()
	info, err := k.Changes(key[0], key[1], 0, 1)
	if err != nil || !info.Kept || info.Floor < h.began {
		t.Fatalf("history %q: %+v, %v", key, info, err)
	}
	if below, err := k.Changes(key[0], key[1], info.Floor-1, 1); err != nil || below.Seen != 0 || below.Items != nil {
		t.Fatalf("a position below the floor was served: %+v, %v", below, err)
	}
	total, clock := uint64(0), k.Clock()
	for i, c := range slices.Backward(h.changes) {
		kept := c.Revision > info.Floor
		size := uint64(c.Size()) //nolint:gosec // a size
		if !kept && h.stamps[i]+h.age > clock && total+size < h.bytes/2 {
			t.Fatalf("history %q: change %d of time %d at time %d is gone after %d bytes", key, c.Revision,
				h.stamps[i], clock, total)
		}
		total += size
	}
	return info.Floor
}
