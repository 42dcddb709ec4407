package group

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/fault"
)

// The tests of this file show hazards of the library without the guard against them, so
// that the tests of the guards are known to show something. docs/consistency.md lists both.

// still checks that something does not happen for a while.
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

// hashicorp/raft#695.
func TestAHeartbeatChangesRaftsStateOnlyOnItsMainLoop(t *testing.T) {
	for name, bare := range map[string]bool{"with the guard": false, "without the guard": true} {
		t.Run(name, func(t *testing.T) {
			disk := &gate{step: "log-append"}
			_, inmem := raft.NewInmemTransport("a")
			tr := &caught{inmem, make(chan func(raft.RPC), 1)}
			o := alone(t, t.TempDir())
			o.Transport, o.Step = tr, disk.at
			o.without = func(g *Group, _ *raft.Config) { g.guard.bare = bare }
			g := openGroup(t, o)
			t.Cleanup(disk.open)
			disk.close()
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = g.ProposeRequest(limited(t), setRequest("k", "v"), Committed) })
			until(t, "the main loop does not hang", func() bool { return g.disk.logs.stalled() > 0 })
			term := g.Term()
			rpc, _ := beat(term+5, "x")
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

// hashicorp/raft#612: once a follower has refused an entry nobody takes answers out of the
// pipeline, and the sender waits in it for ever.
func TestAPipelineThatNobodyDrainsHoldsItsSenderForEver(t *testing.T) {
	listen := func() *raft.NetworkTransport {
		tr, err := raft.NewTCPTransportWithConfig("127.0.0.1:0", nil, &raft.NetworkTransportConfig{MaxPool: 1, MaxRPCsInFlight: 2, Timeout: time.Second})
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
			if _, err := pipe.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse)); err != nil {
				break
			}
		}
		close(sent)
	})
	<-pipe.Consumer() // the refusal; its reader leaves
	if !still(t, sent) {
		t.Error("the sender goes on: the hazard does not show")
	}
	must(t, pipe.Close())
	close(stop)
	wg.Wait()
}

func TestRaftsOwnVerifyLeaderCountsServersWithoutAVote(t *testing.T) {
	c := newCluster(t, slowLeader)
	a := c.group("a")
	must(t, a.raft.DemoteVoter("c", 0, 0).Error())
	c.isolate("b")
	until(t, "the hazard does not show: no majority of voters can be reached, and it says so", func() bool {
		return a.raft.VerifyLeader().Error() == nil
	})
	if _, err := a.ReadIndex(within(t, 2*time.Second)); err == nil {
		t.Error("ours does so too")
	}
}

func TestRaftsOwnAppliedIndexIsAheadOfTheMachine(t *testing.T) {
	hold := make(chan struct{})
	o := alone(t, t.TempDir())
	armed, hangs := make(chan struct{}), make(chan struct{}, 1)
	o.without = func(g *Group, _ *raft.Config) {
		own := g.disk.fsm.reconfigured
		g.disk.fsm.reconfigured = func() { // the machine's goroutine hangs after a configuration
			own()
			select {
			case <-armed:
				hangs <- struct{}{}
				<-hold
			default:
			}
		}
	}
	g := openGroup(t, o)
	put(t, g, "k", "v")
	close(armed)
	added := make(chan error, 1)
	go func() { added <- g.raft.AddNonvoter("x", "x", 0, 0).Error() }()
	<-hangs
	a, err := g.ProposeRequest(limited(t), setRequest("k", "v2"), Durable)
	must(t, err)
	until(t, "the hazard does not show: raft waits for the machine", func() bool { return g.raft.AppliedIndex() >= a.Index })
	if got := peekValue(t, g, "k"); got != "v" {
		t.Fatalf("k = %q", got)
	}
	if err := g.WaitApplied(within(t, 100*time.Millisecond), a.Index); !fault.Is(err, fault.Timeout) {
		t.Errorf("our own wait says: %v", err)
	}
	close(hold)
	must(t, <-added)
	must(t, g.WaitApplied(limited(t), a.Index))
}

// A follower hears of a commit with the next append, or when the leader has been idle for
// its commit time-out; heartbeats do not tell.
func TestAFollowerHearsOfACommitSoonOnlyByAShortCommitTimeout(t *testing.T) {
	for name, short := range map[string]bool{"with the setting": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, func(_ raft.ServerID, o *Options) {
				o.Timing.Commit = 3 * time.Second
				if short {
					o.Timing.Commit = 10 * time.Millisecond
				}
			})
			w := c.put("k", "v")
			lead, _ := c.leader(testIDs...)
			applied := make(chan struct{})
			go func() { _ = c.group(others(lead)[0]).WaitApplied(limited(t), w.Index); close(applied) }()
			if !short {
				if !still(t, applied) {
					t.Error("a follower has heard of the commit: the hazard does not show")
				}
				c.put("k", "next") // the next append tells it
			}
			<-applied
		})
	}
}

// A crash between raft's two writes of a vote: the candidate of an earlier term would be
// granted this term's vote without a look at its log.
func TestRaftsOwnVoteCanBeTornByACrash(t *testing.T) {
	open := func(path string) *raftboltdb.BoltStore {
		s, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	path := filepath.Join(t.TempDir(), "stable.db")
	s := open(path)
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 4))
	must(t, s.Set([]byte(keyLastVoteCand), []byte("old")))
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 5))
	image := filepath.Join(t.TempDir(), "stable.db")
	copyTree(t, path, image)
	must(t, s.Set([]byte(keyLastVoteCand), []byte("new")))
	crashed := open(image)
	term, err := crashed.GetUint64([]byte(keyLastVoteTerm))
	must(t, err)
	candidate, err := crashed.Get([]byte(keyLastVoteCand))
	must(t, err)
	if term != 5 || string(candidate) != "old" {
		t.Errorf("term %d for %q: the hazard does not show", term, candidate)
	}
}

func TestASecondOpenOfAGroupsFilesFailsWhereTheLibraryHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.db")
	first, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
	must(t, err)
	if _, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()}); err == nil {
		t.Fatal("two have the same log open")
	} else {
		wantCode(t, diskError(err, path), fault.Unavailable)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		if s, err := raftboltdb.NewBoltStore(path); err == nil {
			_ = s.Close()
		}
	}()
	if !still(t, opened) {
		t.Error("the library's own open returns: the hazard does not show")
	}
	must(t, first.Close())
	<-opened
}

// bbolt keeps no checksum of an entry.
func TestTheEnginesHandOutAnAlteredEntry(t *testing.T) {
	engines(t, func(t *testing.T, e LogEngine) {
		o := alone(t, t.TempDir())
		o.Engine = e
		engine, err := openEngine(o)
		must(t, err)
		defer engine.Close()
		l := &raft.Log{Index: 1, Term: 1, Data: []byte("as written")}
		seal(l)
		l.Data = []byte("as altered")
		must(t, engine.StoreLog(l))
		var got raft.Log
		if err := engine.GetLog(1, &got); err != nil || string(got.Data) != "as altered" {
			t.Errorf("%q, %v: the hazard does not show", got.Data, err)
		}
		var told error
		s := newLogs(engine, func(err error) { told = err }, func(time.Duration, int, int) {}, noStep)
		wantCode(t, s.GetLog(1, &got), fault.Corrupt)
		wantCode(t, told, fault.Corrupt)
	})
}
