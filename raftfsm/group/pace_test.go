package group

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestADiskIsSlowOnceItWasSlowForLongAndWellOnceItWasWellForLong(t *testing.T) {
	const ms = time.Millisecond
	p := &pace{bound: 200 * ms}
	looks := func(n int, inFlight time.Duration, appends ...time.Duration) bool {
		for range n {
			for _, d := range appends {
				p.add(d)
			}
			p.look(inFlight)
		}
		_, slow := p.state()
		return slow
	}
	for i, x := range []struct {
		n        int
		inFlight time.Duration
		appends  []time.Duration
		want     bool
	}{
		{1000, 0, nil, false}, // nothing is written
		{50, 0, []time.Duration{5 * ms, 6 * ms, 900 * ms}, false},     // every third write is slow: clients hardly notice
		{9, 0, []time.Duration{300 * ms, 5 * ms, 300 * ms}, false},    // not long enough
		{1, 0, []time.Duration{150 * ms}, false},                      // begins anew
		{9, 0, []time.Duration{300 * ms}, false},                      //
		{1000, 0, nil, false},                                         // nothing is written: nothing is known
		{1, 0, []time.Duration{300 * ms}, true},                       // for long enough
		{100, 0, []time.Duration{150 * ms}, true},                     // better, not well
		{9, 0, []time.Duration{20 * ms}, true},                        //
		{1, 0, []time.Duration{150 * ms}, true},                       // begins anew
		{9, 0, []time.Duration{20 * ms}, true},                        //
		{1, 0, []time.Duration{20 * ms}, false},                       // well
		{9, 5 * time.Second, nil, false},                              // a write that does not return counts
		{1, 5 * time.Second, nil, true},                               //
		{12, 0, []time.Duration{ms, 2 * ms, 3 * ms, 400 * ms}, false}, //
	} {
		if got := looks(x.n, x.inFlight, x.appends...); got != x.want {
			t.Errorf("step %d: slow is %v, want %v", i, got, x.want)
		}
	}
	if median, _ := p.state(); median != 3*ms {
		t.Errorf("the median is %s", median)
	}
	for range 10 * paceSamples {
		p.add(ms)
	}
	if len(p.window) != paceSamples {
		t.Errorf("%d samples are kept", len(p.window))
	}
}

func TestLeadershipGoesOnlyToAVoterWithAMuchQuickerDisk(t *testing.T) {
	const ms = time.Millisecond
	voter := func(id raft.ServerID, r Report) answer {
		return answer{server: raft.Server{ID: id, Suffrage: raft.Voter}, report: r}
	}
	replica := voter("r", Report{Append: ms})
	replica.server.Suffrage = raft.Nonvoter
	mute := voter("m", Report{Append: ms})
	mute.err = errCut
	for name, x := range map[string]struct {
		answers []answer
		want    raft.ServerID
	}{
		"the quickest":           {[]answer{voter("b", Report{Append: 20 * ms}), voter("c", Report{Append: 10 * ms})}, "c"},
		"all are slow":           {[]answer{voter("b", Report{Append: 250 * ms, Slow: true}), voter("c", Report{Append: 120 * ms})}, ""},
		"a replica":              {[]answer{replica}, ""},
		"one that does not tell": {[]answer{mute, voter("n", Report{})}, ""},
		"one in doubt":           {[]answer{voter("b", Report{Append: ms, Doubted: true})}, ""},
		"nobody":                 {nil, ""},
	} {
		if got, _ := quicker(300*ms, x.answers); got != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

func TestALeaderWhoseDiskTurnsSlowHandsOver(t *testing.T) {
	for _, all := range []bool{false, true} {
		c := newCluster(t, func(id raft.ServerID, o *Options) {
			o.Replicas = o.Transport.(*wire)
			// The appends are slow by the test's word: how long they really take on this machine counts for nothing.
			o.Timing = Timing{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Commit: 5 * time.Millisecond, SlowLook: time.Hour, HandOver: time.Hour, SlowAppend: time.Hour}
		})
		id, g := c.leader(testIDs...)
		for i, o := range c.running() {
			median := time.Millisecond
			if i == id || all {
				median = 2 * time.Hour
			}
			for range paceLooks + 1 { // the first holds what was really written
				o.disk.pace.add(median)
				o.disk.pace.look(0)
			}
		}
		now := time.Now()
		g.relieve(now) // as watchState does, which does not come to it in this test
		if all {
			if got, _ := c.leader(testIDs...); got != id || counted(t, g.obs.handOverNone) != 1 {
				t.Errorf("%s leads although no disk is better", got)
			}
			continue
		}
		if counted(t, g.obs.handOvers) != 1 {
			t.Fatalf("leadership was not handed over: failed %v, nobody better %v, leads %v, others %+v", counted(t, g.obs.handOverFailed), counted(t, g.obs.handOverNone), g.Leading(), g.ask(0))
		}
		to, _ := c.leader(others(id)...)
		c.put("k", "v")
		// Handed back by somebody: the next time has to wait.
		soon(t, "leadership does not come back", func() bool {
			if g.Leading() {
				return true
			}
			to, _ = c.leader(testIDs...)
			if to != id {
				_ = c.group(to).Transfer(within(t, 5*time.Second), id)
			}
			return false
		})
		g.relieve(now.Add(time.Minute))
		if n := counted(t, g.obs.handOvers); n != 1 {
			t.Errorf("%v hand-overs within the interval", n)
		}
		g.relieve(now.Add(2 * time.Hour))
		if n := counted(t, g.obs.handOvers); n != 2 && g.Leading() {
			t.Errorf("%v hand-overs after the interval", n)
		}
	}
}
