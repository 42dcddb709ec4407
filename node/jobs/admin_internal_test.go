package jobs

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// A list is refused if its jobs need too much memory, because they are large or because they are many.
func TestListing_Bounded(t *testing.T) {
	for name, c := range map[string]struct{ size, fit int }{"large": {1 << 20, 63}, "small": {0, 262_144}} {
		s := schema.JobStatus{Job: make([]byte, c.size)}
		var l listing
		var err error
		for err == nil && len(l.out) <= c.fit {
			err = l.add(&s)
		}
		if !fault.Is(err, fault.TooLarge) || len(l.out) != c.fit || !strings.Contains(err.Error(), "--app") {
			t.Errorf("%s: %d jobs, %v", name, len(l.out), err)
		}
	}
}
