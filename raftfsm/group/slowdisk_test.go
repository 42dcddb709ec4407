package group

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func TestQuicker_NeedsMuchFasterDisk(t *testing.T) {
	const ms = time.Millisecond
	voter := func(id raft.ServerID, r integrity.Report) integrity.Answer {
		return integrity.Answer{Server: raft.Server{ID: id, Suffrage: raft.Voter}, Report: r}
	}
	replica := voter("r", integrity.Report{Append: ms})
	replica.Server.Suffrage = raft.Nonvoter
	mute := voter("m", integrity.Report{Append: ms})
	mute.Err = errCut
	for name, x := range map[string]struct {
		answers []integrity.Answer
		want    raft.ServerID
	}{
		"the fastest disk": {[]integrity.Answer{voter("b", integrity.Report{Append: 20 * ms}),
			voter("c", integrity.Report{Append: 10 * ms})}, "c"},
		"all are slow": {[]integrity.Answer{voter("b", integrity.Report{Append: 250 * ms, Slow: true}),
			voter("c", integrity.Report{Append: 120 * ms})}, ""},
		"a non-voter":                   {[]integrity.Answer{replica}, ""},
		"servers without a measurement": {[]integrity.Answer{mute, voter("n", integrity.Report{})}, ""},
		"a server in doubt": {[]integrity.Answer{voter("b", integrity.Report{Append: ms, Doubted: true})},
			""},
		"no server": {nil, ""},
	} {
		if got, _ := quicker(300*ms, x.answers); got != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

func TestSlowDisk_LeaderTransfersLeadership(t *testing.T) {
	for _, all := range []bool{false, true} {
		c := newCluster(t, func(id raft.ServerID, o *Options) {
			o.Replicas = o.Transport.(*wire)
			// The test itself sets the durations of appends, so that the real speed of this machine does not
			// matter.
			o.Timing = Timing{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Commit: 5 * time.Millisecond,
				SlowLook: time.Hour, HandOver: time.Hour, SlowAppend: time.Hour}
		})
		id, g := c.leader(testIDs...)
		for i, o := range c.running() {
			median := time.Millisecond
			if i == id || all {
				median = 2 * time.Hour
			}
			for range raftlog.WindowsUntilSlow + 1 { // the first window contains real writes
				o.disk.pace.Add(median)
				o.disk.pace.EndWindow(0)
			}
		}
		now := time.Now()
		g.relieve(now) // called here because watchState does not get to it during this test
		if all {
			if got, _ := c.leader(testIDs...); got != id || counted(t, g.obs.handOverNone) != 1 {
				t.Errorf("%s leads although no disk is better", got)
			}
			continue
		}
		if counted(t, g.obs.handOvers) != 1 {
			t.Fatalf("leadership was not transferred: failed %v, no better voter %v, leads %v, others %+v", counted(t,
				g.obs.handOverFailed), counted(t, g.obs.handOverNone), g.Leading(), g.integrity.Ask(0))
		}
		to, _ := c.leader(others(id)...)
		c.put("k", "v")
		// Leadership is transferred back. The next transfer by relieve has to wait for Timing.HandOver.
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
			t.Errorf("%v transfers within the interval", n)
		}
		g.relieve(now.Add(2 * time.Hour))
		if n := counted(t, g.obs.handOvers); n != 2 && g.Leading() {
			t.Errorf("%v transfers after the interval", n)
		}
	}
}
