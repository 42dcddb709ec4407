package raftlog

import (
	"testing"
	"time"
)

func TestDiskSpeed_ChangesAfterConsecutiveWindows(t *testing.T) {
	const ms = time.Millisecond
	p := &DiskSpeed{Bound: 200 * ms}
	looks := func(n int, inFlight time.Duration, appends ...time.Duration) bool {
		for range n {
			for _, d := range appends {
				p.Add(d)
			}
			p.EndWindow(inFlight)
		}
		_, slow := p.State()
		return slow
	}
	for i, x := range []struct {
		n        int
		inFlight time.Duration
		appends  []time.Duration
		want     bool
	}{
		{1000, 0, nil, false}, // nothing is written
		{50, 0, []time.Duration{5 * ms, 6 * ms, 900 * ms},
			false}, // every third write is slow: clients hardly notice
		{9, 0, []time.Duration{300 * ms, 5 * ms, 300 * ms}, false},    // too few windows
		{1, 0, []time.Duration{150 * ms}, false},                      // the count starts again
		{9, 0, []time.Duration{300 * ms}, false},                      // too few windows
		{1000, 0, nil, false},                                         // without writes nothing changes
		{1, 0, []time.Duration{300 * ms}, true},                       // enough windows
		{100, 0, []time.Duration{150 * ms}, true},                     // better, but not below half of the bound
		{9, 0, []time.Duration{20 * ms}, true},                        // too few windows
		{1, 0, []time.Duration{150 * ms}, true},                       // the count starts again
		{9, 0, []time.Duration{20 * ms}, true},                        // too few windows
		{1, 0, []time.Duration{20 * ms}, false},                       // normal again
		{9, 5 * time.Second, nil, false},                              // a write in flight counts
		{1, 5 * time.Second, nil, true},                               // enough windows
		{12, 0, []time.Duration{ms, 2 * ms, 3 * ms, 400 * ms}, false}, // normal again, although some writes are slow
	} {
		if got := looks(x.n, x.inFlight, x.appends...); got != x.want {
			t.Errorf("step %d: slow is %v, want %v", i, got, x.want)
		}
	}
	if median, _ := p.State(); median != 3*ms {
		t.Errorf("the median is %s", median)
	}
	for range 10 * paceSamples {
		p.Add(ms)
	}
	if len(p.window) != paceSamples {
		t.Errorf("%d samples are kept", len(p.window))
	}
}
