package proof

import (
	"fmt"
	"slices"
	"testing"
)

// dealt returns the first steps of a seed.
func dealt(seed uint64, n int) (out []string) {
	d := newDeck(seed)
	for range n {
		s, rnd := d.deal()
		out = append(out, fmt.Sprint(s.class, s.Fault.Name, s.Calm, s.For, rnd.Uint64()))
	}
	return out
}

func TestSchedule_IsDeterminedByItsSeed(t *testing.T) {
	one, again, longer, other := dealt(7, 60), dealt(7, 60), dealt(7, 90), dealt(8, 60)
	if !slices.Equal(one, again) || !slices.Equal(one, longer[:60]) {
		t.Error("one seed deals two schedules")
	}
	if slices.Equal(one, other) {
		t.Error("two seeds deal one schedule")
	}
}

func TestSchedule_PlaysEveryClassBeforeRepeating(t *testing.T) {
	d := newDeck(3)
	seen := map[string]int{}
	for range 3 * len(d.classes) {
		s, _ := d.deal()
		seen[s.class]++
	}
	for _, c := range d.classes {
		if seen[c.ID] != 3 {
			t.Errorf("%s came %d times, not 3", c.ID, seen[c.ID])
		}
	}
}

func TestSchedule_PlaysOrExplainsEveryClass(t *testing.T) {
	all := classes()
	for i, c := range all {
		if want := fmt.Sprintf("F%d", i+1); c.ID != want {
			t.Errorf("%s stands where %s should", c.ID, want)
		}
		if (len(c.faults) == 0) != (c.skipped != "") {
			t.Errorf("%s has %d faults and the reason %q", c.ID, len(c.faults), c.skipped)
		}
		names := map[string]bool{}
		for _, f := range c.faults {
			if names[f.Name] {
				t.Errorf("%s has %q twice", c.ID, f.Name)
			}
			names[f.Name] = true
		}
	}
	if len(all) != 22 {
		t.Errorf("%d classes, not 22", len(all))
	}
}
