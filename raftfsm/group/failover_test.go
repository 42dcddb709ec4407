package group

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func others(id raft.ServerID) []raft.ServerID {
	var out []raft.ServerID
	for _, o := range testIDs {
		if o != id {
			out = append(out, o)
		}
	}
	return out
}

func TestRestart_AllServersKeepEverything(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		c := newCluster(t, func(_ raft.ServerID, o *Options) { o.Engine = e })
		for i := range 30 {
			c.put(key(i), "v")
		}
		c.stopAll()
		for _, id := range testIDs {
			c.start(id)
		}
		c.put("last", "v")
		c.converge()
		if n := c.group("b").Machine().Stats().Keys; n != 31 {
			t.Errorf("%d keys, want 31", n)
		}
	})
}

// slowLeader makes server a, as leader, keep its role long after the other servers have elected another leader. So it
// behaves like a leader whose process was paused or whose clock is slow. slowLeader does not change other servers.
func slowLeader(id raft.ServerID, o *Options) {
	if id == "a" {
		o.Timing.Heartbeat, o.Timing.Election, o.Timing.Lease = 30*time.Second, 30*time.Second, 30*time.Second
	}
}

func TestReadIndex_RefusedByDeposedLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLeader)
	a := c.group("a")
	c.put("k", "old")
	if got, err := read(limited(t), a, "k"); got != "old" || err != nil {
		t.Fatalf("before the partition: %q, %v", got, err)
	}
	c.isolate("a")
	_, b := c.leader("b", "c")
	put(t, b, "k", "new")

	if !a.Leading() {
		t.Fatal("a no longer leads: the test shows nothing")
	}
	if got := peekValue(t, a, "k"); got != "old" {
		t.Fatalf("a's machine holds %q, which is not stale, the test shows nothing", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := read(within(t, 2*time.Second), a, "k"); err == nil {
				t.Errorf("a deposed leader has read %q", got)
			}
		})
	}
	wg.Wait()
	if !a.Leading() {
		t.Fatal("a stopped leading too early: the test shows too little")
	}
	if got, err := read(limited(t), b, "k"); got != "new" || err != nil {
		t.Errorf("the new leader reads %q, %v", got, err)
	}
	wantCode(t, b.AnswerConfirm(a.Term()), fault.NotLeader)
	c.heal()
	c.converge()
	if got := peekValue(t, a, "k"); got != "new" {
		t.Errorf("after healing a holds %q", got)
	}
}

func TestReadIndex_RefusedWhenRoundIsCutOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLeader)
	a := c.group("a")
	c.put("k", "v")
	// Requests arrive, responses do not.
	for _, id := range []raft.ServerID{"b", "c"} {
		c.set(link{id, "a"}, true)
	}
	_, err := a.ReadIndex(within(t, 2*time.Second))
	wantCode(t, err, fault.Unavailable)
	c.set(link{"b", "a"}, false) // one confirmation is enough
	eventually(t, func() error { _, err := a.ReadIndex(limited(t)); return err })
}

// countingConfirmer counts confirmation rounds and can delay them.
type countingConfirmer struct {
	inner Confirmer
	gate  gate
	mu    sync.Mutex
	asked map[raft.ServerID]int
}

func (c *countingConfirmer) ConfirmTerm(ctx context.Context, s raft.Server, term uint64) error {
	c.mu.Lock()
	c.asked[s.ID]++
	c.mu.Unlock()
	c.gate.at("confirm")
	return c.inner.ConfirmTerm(ctx, s, term)
}

func (c *countingConfirmer) count(id raft.ServerID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[id]
}

func TestReadIndex_WaitingReadsShareNextRound(t *testing.T) {
	confirm := &countingConfirmer{gate: gate{step: "confirm"}, asked: map[raft.ServerID]int{}}
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		slowLeader(id, o)
		if id == "a" {
			o.Timing.ReadRound = 30 * time.Second
			confirm.inner = o.Confirmer
			o.Confirmer = confirm
		}
	})
	a := c.group("a")
	t.Cleanup(confirm.gate.open)
	confirm.gate.close()
	before := confirm.count("b")
	results := make(chan ReadIndex, 51)
	get := func() {
		ri, err := a.ReadIndex(limited(t))
		if err != nil {
			t.Errorf("read index: %v", err)
		}
		results <- ri
	}
	go get()
	until(t, "no round has begun", func() bool { return confirm.count("b") == before+1 && confirm.count("c") > 0 })
	written := put(t, a, "k", "v") // after the first round has recorded its index
	for range 50 {
		go get()
	}
	until(t, "the reads do not wait", func() bool {
		a.reader.mu.Lock()
		defer a.reader.mu.Unlock()
		return len(a.reader.waiting) == 50
	})
	if n := len(results); n != 0 {
		t.Fatalf("%d reads were answered without a confirmation round", n)
	}
	confirm.gate.open()
	late := 0
	for range 51 {
		if ri := <-results; ri.Index >= written.Index {
			late++
		}
	}
	if late != 50 {
		t.Errorf("%d of 50 reads that began after a write have an index that covers it", late)
	}
	if n := confirm.count("b") - before; n != 2 {
		t.Errorf("51 reads took %d rounds, want 2", n)
	}
}

func TestReadIndex_CountsOnlyVoters(t *testing.T) {
	confirm := &countingConfirmer{gate: gate{step: "never"}, asked: map[raft.ServerID]int{}}
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		slowLeader(id, o)
		if id == "a" {
			confirm.inner = o.Confirmer
			o.Confirmer = confirm
		}
	})
	a := c.group("a")
	must(t, a.raft.DemoteVoter("c", 0, 0).Error())
	before := confirm.count("c")
	_, err := a.ReadIndex(limited(t))
	must(t, err)
	if confirm.count("c") != before {
		t.Error("a non-voter was queried")
	}
	c.isolate("b")
	if _, err := a.ReadIndex(within(t, 2*time.Second)); err == nil {
		t.Error("a leader and a non-voter made a majority of two voters")
	}
}

func TestRetry_AfterFailoverIsAppliedOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	origin := c.register("client")
	first := setRequest("k", "v")
	first.ID = command.RequestID{Origin: origin, Seq: 1}
	old, g := c.leader(testIDs...)
	a, err := g.ProposeRequest(limited(t), first, Committed)
	must(t, err)
	c.stop(old)
	c.put("k", "somebody else's", others(old)...)
	_, g = c.leader(others(old)...)
	again, err := g.ProposeRequest(limited(t), first, Committed)
	must(t, err)
	if !again.Result.Replayed || again.Result.Revisions[0] != a.Result.Revisions[0] || again.Result.Index != a.Index {
		t.Errorf("the retry gave %+v, the first try %+v", again.Result, a.Result)
	}
	if got := peekValue(t, g, "k"); got != "somebody else's" {
		t.Errorf("the retry was applied again: k = %q", got)
	}
	c.start(old)
	c.converge()
}

func TestHolds_WriteLostWithLeaderIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLeader)
	a := c.group("a")
	c.isolate("a")
	ack, err := a.ProposeRequest(limited(t), setRequest("eventual", "v"), Durable)
	if err != nil {
		t.Fatalf("a durable write on a leader that is cut off: %v", err)
	}
	if a.raft.CommitIndex() >= ack.Index {
		t.Fatal("the write was committed without a quorum")
	}
	if got := a.Holds(ack.Position); got != Held {
		t.Errorf("before the fail-over: %d", got)
	}
	// This write waits for the commit, and then fails because leadership is lost.
	waits := make(chan error, 1)
	go func() {
		_, err := a.ProposeRequest(limited(t), setRequest("strong", "v"), Committed)
		waits <- err
	}()
	until(t, "the strong write is not in the log", func() bool { return a.LastIndex() > ack.Index })
	for i := range 5 {
		c.put(key(i), "v", "b", "c")
	}
	select {
	case err := <-waits:
		t.Fatalf("a strong write was answered without a quorum: %v", err)
	default:
	}
	_, newer := c.leader("b", "c")
	if got := a.Holds(raftlog.Position{Term: newer.Term(), Index: ack.Index}); got != Unknown {
		t.Errorf("for an entry of a later term than it knows, Holds returned %d", got)
	}
	c.heal()
	wantCode(t, <-waits, fault.Indeterminate)
	c.converge()
	until(t, "the lost write is not reported", func() bool { return a.Holds(ack.Position) == Lost })
	for _, k := range []string{"eventual", "strong"} {
		if got := peekValue(t, a, k); got != "" {
			t.Errorf("%s = %q, though its leader was replaced before a quorum had it", k, got)
		}
	}
	for id, g := range c.running() {
		until(t, string(id)+" still has open entries", func() bool { return openEntries(g) == 0 })
	}
}

func TestDiskStall_LeaderIsReplacedAndRecovers(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	for name, c := range map[string]struct {
		stall    time.Duration
		replaced bool
	}{
		"with the guard":    {500 * time.Millisecond, true},
		"without the guard": {time.Hour, false}, // shows that the test can fail
	} {
		t.Run(name, func(t *testing.T) {
			disk := &gate{step: "log-append"}
			cl := newCluster(t, func(id raft.ServerID, o *Options) {
				o.Timing.Stall, o.Timing.StallFatal = c.stall, time.Hour
				if id == "a" {
					o.Step = disk.at
				}
			})
			t.Cleanup(disk.open)
			a := cl.group("a")
			cl.put("before", "v", "a")
			disk.close()
			out := make(chan error, 1)
			go func() {
				_, err := a.ProposeRequest(limited(t), setRequest("stuck", "v"), Committed)
				out <- err
			}()
			until(t, "the disk does not hang", func() bool { return a.disk.logs.Stalled() > 0 })
			if !c.replaced {
				timer := time.NewTimer(5 * quick(Timing{}).Heartbeat)
				<-timer.C
				if cl.group("b").Leading() || cl.group("c").Leading() {
					t.Error("another server leads without the guard: the test shows nothing")
				}
				disk.open()
				must(t, <-out)
				return
			}
			cl.put("after", "v", "b", "c")
			if _, err := read(within(t, time.Second), a, "after"); err == nil {
				t.Error("the server whose disk hangs still reads as a leader")
			}
			disk.open()
			if err := <-out; !fault.Is(err, fault.Indeterminate) && !fault.Is(err, fault.NotLeader) {
				t.Errorf("the stuck write gave %v", err)
			}
			cl.converge()
			if got := peekValue(t, a, "after"); got != "v" {
				t.Errorf("after = %q", got)
			}
		})
	}
}

func TestDiskStall_EndsProcess(t *testing.T) {
	disk := &gate{step: "log-append"}
	fatal := make(chan error, 100)
	o := alone(t, t.TempDir())
	o.Step = disk.at
	o.Timing.Stall, o.Timing.StallFatal = 20*time.Millisecond, 60*time.Millisecond
	o.Fatal = func(err error) {
		select {
		case fatal <- err:
		default:
		}
	}
	g := openGroup(t, o)
	t.Cleanup(disk.open)
	disk.close()
	go func() { _, _ = g.ProposeRequest(limited(t), setRequest("k", "v"), Committed) }()
	select {
	case err := <-fatal:
		wantCode(t, err, fault.Internal)
	case <-limited(t).Done():
		t.Fatal("the process continues with a hanging disk")
	}
	disk.open()
}

func TestCaughtUp_NeedsCommitIndexOfLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.put("k", "v1")
	id, _ := c.leader(testIDs...)
	behind := others(id)[0]
	for _, i := range others(id) {
		until(t, "a follower is not caught up", func() bool { return c.group(i).CaughtUp() })
	}
	c.stop(behind)
	c.put("k", "v2", others(behind)...)
	c.isolate(behind)
	g := c.start(behind)
	timer := time.NewTimer(2 * quick(Timing{}).Heartbeat)
	<-timer.C
	if g.CaughtUp() {
		t.Fatal("a server that has heard no leader since it was opened reports that it is caught up")
	}
	c.heal()
	until(t, "the server does not catch up", func() bool { return g.CaughtUp() })
	if got := peekValue(t, g, "k"); got != "v2" {
		t.Errorf("caught up with k = %q", got)
	}
}

func TestWaitApplied_IndexWithoutCommand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLeader)
	c.put("k", "v1", "a")
	a := c.group("a")
	c.isolate("c")
	put(t, a, "k", "v2")
	must(t, a.raft.Barrier(0).Error()) // the newest committed entry is a barrier, which no machine receives
	ri, err := a.ReadIndex(limited(t))
	must(t, err)
	if ri.Index <= a.Machine().Applied() {
		t.Fatalf("read index %d, applied %d: the test shows nothing", ri.Index, a.Machine().Applied())
	}
	follower := c.group("c")
	got := make(chan string, 1)
	go func() {
		v, err := readAt(limited(t), follower, "k", ri)
		if err != nil {
			t.Errorf("waiting for index %d: %v", ri.Index, err)
		}
		got <- v
	}()
	timer := time.NewTimer(50 * time.Millisecond)
	select {
	case v := <-got:
		t.Fatalf("read %q before the entries were there", v)
	case <-timer.C:
	}
	c.heal()
	if v := <-got; v != "v2" {
		t.Errorf("read %q", v)
	}
}

// The log of a deposed leader has a barrier at an index at which the group has committed a command.
func TestWaitApplied_UncommittedEntryIsNotSkipped(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLeader)
	c.put("k", "v1", "a")
	a := c.group("a")
	c.isolate("a")
	before := a.LastIndex()
	go func() { _ = a.raft.Barrier(0).Error() }() // these barriers fail when a is no longer leader
	go func() { _ = a.raft.Barrier(0).Error() }()
	go func() { _ = a.raft.Barrier(0).Error() }()
	until(t, "the barriers are not in the log", func() bool { return a.LastIndex() == before+3 })
	_, g := c.leader("b", "c")
	var last Answer
	for i := range 5 { // no-op and barrier of the new term, then commands
		last = put(t, g, "k", fmt.Sprint("new", i))
	}
	ri := ReadIndex{Position: raftlog.Position{Term: last.Term, Index: before + 3}}
	ctx := within(t, 100*time.Millisecond)
	if err := a.WaitApplied(ctx, ri.Index); err == nil {
		t.Fatalf("index %d is a command that a has never seen, but WaitApplied returned without an error", ri.Index)
	}
	c.heal()
	must(t, a.WaitApplied(limited(t), ri.Index))
	c.converge()
}

func TestFailover_LogsAgreeAfterMany(t *testing.T) {
	if testing.Short() {
		t.Skip("runs many schedules")
	}
	c := newCluster(t, nil)
	n := 0
	for round := range 4 {
		id, _ := c.leader(testIDs...)
		c.isolate(id)
		for range 5 {
			c.put(key(n), fmt.Sprint(round), others(id)...)
			n++
		}
		c.heal()
	}
	c.converge()
	a := c.group("a")
	for _, id := range []raft.ServerID{"b", "c"} {
		g := c.group(id)
		for i := uint64(1); i <= min(a.raft.CommitIndex(), g.raft.CommitIndex()); i++ {
			var x, y raft.Log
			must(t, a.disk.logs.GetLog(i, &x))
			must(t, g.disk.logs.GetLog(i, &y))
			if x.Term != y.Term || x.Type != y.Type || string(x.Data) != string(y.Data) {
				t.Fatalf("entry %d is %v of term %d on a and %v of term %d on %s", i, x.Type, x.Term,
					y.Type, y.Term, id)
			}
		}
	}
	if got := a.Machine().Stats().Keys; got != uint64(n) {
		t.Errorf("%d keys, want %d", got, n)
	}
}
