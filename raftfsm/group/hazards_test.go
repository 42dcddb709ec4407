package group

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/snapshot"
	"github.com/quorate/quorate/raftfsm/transport"
)

// The tests of this file show hazards of hashicorp/raft that occur without our guards. They prove that the
// tests of the guards can fail. docs/consistency.md lists the hazards and the guards.

// still reports whether nothing arrives from the channel for 300 ms.
func still(t *testing.T, happened <-chan struct{}) bool {
	t.Helper()
	timer := time.NewTimer(300 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-happened:
		return false
	case <-timer.C:
		return true
	}
}

// caught is a transport whose heartbeat handler a test can call.
type caught struct {
	*raft.InmemTransport
	beat chan func(raft.RPC)
}

func (c *caught) SetHeartbeatHandler(h func(raft.RPC)) { c.beat <- h }

// A heartbeat changes the term of raft while its main loop is in the middle of a write (hashicorp/raft#695).
func TestHazard_HeartbeatChangesStateOutsideMainLoop(t *testing.T) {
	for name, bare := range map[string]bool{"with the guard": false, "without the guard": true} {
		t.Run(name, func(t *testing.T) {
			disk := &gate{step: "log-append"}
			_, inmem := raft.NewInmemTransport("a")
			tr := &caught{inmem, make(chan func(raft.RPC), 1)}
			o := alone(t, t.TempDir())
			o.Transport, o.Step = tr, disk.at
			o.without = func(g *Group, _ *raft.Config) { g.guard.SwitchOff(transport.Off{Heartbeats: bare}) }
			g := openGroup(t, o)
			t.Cleanup(disk.open)
			disk.close()
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = g.ProposeRequest(limited(t), setRequest("k", "v"), Committed) })
			until(t, "the main loop does not hang", func() bool { return g.disk.logs.Stalled() > 0 })
			term := g.Term()
			rpc, _ := heartbeat(term+5, "x")
			done := make(chan struct{})
			go func() { (<-tr.beat)(rpc); close(done) }()
			if bare {
				until(t, "the hazard does not show: the term is the same", func() bool { return g.Term() == term+5 })
			} else if still(t, done); g.Term() != term || g.raft.State() != raft.Leader {
				t.Errorf("in the middle of a write: %v in term %d, was leader in %d", g.raft.State(), g.Term(), term)
			}
			disk.open()
			<-done
			until(t, "the heartbeat is lost", func() bool { return g.Term() == term+5 })
			wg.Wait()
		})
	}
}

// After a follower has refused an entry, no goroutine reads responses from the pipeline. The sender of further entries
// then blocks forever (hashicorp/raft#612).
func TestHazard_UndrainedPipelineBlocksSender(t *testing.T) {
	listen := func() *raft.NetworkTransport {
		tr, err := raft.NewTCPTransportWithConfig("127.0.0.1:0", nil, &raft.NetworkTransportConfig{MaxPool: 1,
			MaxRPCsInFlight: 2, Timeout: time.Second})
		must(t, err)
		t.Cleanup(func() { must(t, tr.Close()) })
		return tr
	}
	from, to := listen(), listen()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-to.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Term: 1}, nil) // refused
			case <-stop:
				return
			}
		}
	})
	pipe, err := from.AppendEntriesPipeline("b", to.LocalAddr())
	must(t, err)
	sent := make(chan struct{})
	wg.Go(func() {
		for range 8 {
			if _, err := pipe.AppendEntries(&raft.AppendEntriesRequest{Term: 1},
				new(raft.AppendEntriesResponse)); err != nil {
				break
			}
		}
		close(sent)
	})
	<-pipe.Consumer() // the refusal; afterwards nothing reads the channel
	if !still(t, sent) {
		t.Error("the sender is not blocked: the hazard does not show")
	}
	must(t, pipe.Close())
	close(stop)
	wg.Wait()
}

func TestHazard_VerifyLeaderCountsNonvoters(t *testing.T) {
	c := newCluster(t, slowLeader)
	a := c.group("a")
	must(t, a.raft.DemoteVoter("c", 0, 0).Error())
	c.isolate("b")
	until(t, "the hazard does not show: VerifyLeader fails without a majority of voters", func() bool {
		return a.raft.VerifyLeader().Error() == nil
	})
	if _, err := a.ReadIndex(within(t, 2*time.Second)); err == nil {
		t.Error("our ReadIndex counts the non-voter too")
	}
}

// hangingMachine hangs after a configuration entry once armed is closed, until hold is closed.
type hangingMachine struct {
	snapshot.Events
	armed, hold <-chan struct{}
	hangs       chan<- struct{}
}

func (h *hangingMachine) Reconfigured() {
	h.Events.Reconfigured()
	select {
	case <-h.armed:
		h.hangs <- struct{}{}
		<-h.hold
	default:
	}
}

func TestHazard_AppliedIndexIsAheadOfMachine(t *testing.T) {
	hold := make(chan struct{})
	o := alone(t, t.TempDir())
	armed, hangs := make(chan struct{}), make(chan struct{}, 1)
	o.without = func(g *Group, _ *raft.Config) {
		g.disk.fsm.Events = &hangingMachine{g.disk.fsm.Events, armed, hold, hangs}
	}
	g := openGroup(t, o)
	put(t, g, "k", "v")
	close(armed)
	added := make(chan error, 1)
	go func() { added <- g.raft.AddNonvoter("x", "x", 0, 0).Error() }()
	<-hangs
	a, err := g.ProposeRequest(limited(t), setRequest("k", "v2"), Durable)
	must(t, err)
	until(t, "the hazard does not show: raft waits for the machine", func() bool {
		return g.raft.AppliedIndex() >= a.Index
	})
	if got := peekValue(t, g, "k"); got != "v" {
		t.Fatalf("k = %q", got)
	}
	if err := g.WaitApplied(within(t, 100*time.Millisecond), a.Index); !fault.Is(err, fault.Timeout) {
		t.Errorf("WaitApplied returned %v", err)
	}
	close(hold)
	must(t, <-added)
	must(t, g.WaitApplied(limited(t), a.Index))
}

// Without announcements, a follower learns of a commit with the next append, or after the commit timeout of an idle
// leader. Heartbeats do not carry the commit index.
func TestHazard_FollowerLearnsCommitIndexAfterCommitTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the commit timeout several times")
	}
	for name, announced := range map[string]bool{"with announcements": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, func(_ raft.ServerID, o *Options) {
				o.Timing.Commit = 3 * time.Second
				if !announced {
					o.Timing.Announce = time.Minute
				}
			})
			w := c.put("k", "v")
			lead, _ := c.leader(testIDs...)
			applied := make(chan struct{})
			go func() {
				for _, id := range others(lead) {
					_ = c.group(id).WaitApplied(limited(t), w.Index)
				}
				close(applied)
			}()
			if !announced {
				// The slower follower may get the entry after its commit, together with the commit index. The faster
				// follower cannot, because the commit needs its acknowledgement.
				if !still(t, applied) {
					t.Error("all followers have learned of the commit: the hazard does not show")
				}
				c.put("k", "next") // the next append carries the commit index
			}
			<-applied
		})
	}
}
