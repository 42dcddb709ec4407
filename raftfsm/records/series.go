package records

import (
	"maps"
	"slices"
)

// Series limits how many labels of a metric have series of their own. All other labels share one series.
type Series[L comparable] struct {
	Max     int // number of labels with a series of their own
	Other   L   // label of the shared series
	Compare func(a, b L) int

	own map[L]bool
}

// Fold merges the values of some labels, so that at most s.Max labels have a series of their own. It adds the values of
// all other labels to the value of s.Other, and deletes these labels from values. It returns the labels that are left,
// in the order of s.Compare.
//
// New labels get a series in the order of s.Compare, while there is room. A label keeps its series in later calls, so a
// label never moves between s.Other and a series of its own.
func Fold[L comparable, V any](s *Series[L], values map[L]V, add func(sum, v V) V) []L {
	if s.own == nil {
		s.own = map[L]bool{}
	}
	for _, l := range slices.SortedFunc(maps.Keys(values), s.Compare) {
		switch {
		case l == s.Other || s.own[l]:
		case len(s.own) < s.Max:
			s.own[l] = true
		default:
			values[s.Other] = add(values[s.Other], values[l])
			delete(values, l)
		}
	}
	return slices.SortedFunc(maps.Keys(values), s.Compare)
}
