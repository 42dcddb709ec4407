package records_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"github.com/quorate/quorate/raftfsm/records"
)

func TestFold_LabelsAboveTheLimitShareASeries(t *testing.T) {
	s := &records.Series[string]{Max: 2, Other: "other", Compare: cmp.Compare[string]}
	add := func(sum, v int) int { return sum + v }
	for _, c := range []struct{ in, want map[string]int }{
		{map[string]int{}, map[string]int{}},
		{map[string]int{"x": 1}, map[string]int{"x": 1}},
		{map[string]int{"x": 1, "other": 5}, map[string]int{"x": 1, "other": 5}},
		{map[string]int{"x": 1, "y": 2, "z": 3, "other": 5}, map[string]int{"x": 1, "y": 2, "other": 8}},
		{map[string]int{"a": 1, "y": 2, "z": 3}, map[string]int{"y": 2, "other": 4}},
	} {
		got := maps.Clone(c.in)
		labels := records.Fold(s, got, add)
		if !maps.Equal(got, c.want) || !slices.Equal(labels, slices.Sorted(maps.Keys(c.want))) {
			t.Errorf("%v becomes %v, with the labels %q; want %v", c.in, got, labels, c.want)
		}
	}
}
