package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// gate is a Step that blocks disk work at one step while the gate is closed.
type gate struct {
	step string
	mu   sync.Mutex
	hold chan struct{} // nil = open
}

func (g *gate) at(step string) {
	if step != g.step {
		return
	}
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hold != nil {
		close(g.hold)
		g.hold = nil
	}
}

// heldGroup opens a group whose log writes wait while the gate is closed.
func heldGroup(t *testing.T, change func(*Options)) (*Group, *gate) {
	t.Helper()
	disk := &gate{step: "log-append"}
	o := alone(t, t.TempDir())
	o.Step = disk.at
	change(&o)
	g := openGroup(t, o)
	t.Cleanup(disk.open)
	return g, disk
}

type answered struct {
	i   int
	a   Answer
	err error
}

// proposeAll proposes requests in the background, in order, to a group that is clogged. The channel returns the
// answers as they arrive.
func proposeAll(t *testing.T, g *Group, ctx context.Context, ack Ack, requests ...*command.Request) <-chan answered {
	t.Helper()
	out := make(chan answered, len(requests))
	for i, r := range requests {
		data := encoded(t, r)
		before := queuedCount(g)
		go func() {
			a, err := g.Propose(ctx, data, ack)
			out <- answered{i, a, err}
		}()
		// The next request enters the queue after this one.
		waiting(t, g, before+1)
	}
	return out
}

func queuedCount(g *Group) int {
	g.proposer.mu.Lock()
	defer g.proposer.mu.Unlock()
	return len(g.proposer.queue)
}

func waiting(t *testing.T, g *Group, n int) {
	t.Helper()
	eventually(t, func() error {
		if have := queuedCount(g); have != n {
			return fmt.Errorf("%d requests are waiting, want %d", have, n)
		}
		return nil
	})
}

// clog closes the gate and fills the window with entries of one request each.
func clog(t *testing.T, g *Group, disk *gate) <-chan answered {
	t.Helper()
	disk.close()
	out := make(chan answered, g.opts.Bounds.Window)
	for i := range g.opts.Bounds.Window {
		go func() {
			a, err := g.ProposeRequest(limited(t), setRequest(fmt.Sprintf("clog%d", i), "v"), Committed)
			out <- answered{i, a, err}
		}()
		until(t, "the window is not filled", func() bool { return len(g.proposer.slots) == i+1 })
		waiting(t, g, 0)
		if i == 0 {
			until(t, "the first entry is not written", func() bool { return g.disk.logs.Stalled() > 0 })
		}
	}
	return out
}

// entries returns the number of requests in each log entry from an index on, and their sizes.
func entries(t *testing.T, g *Group, from uint64) (requests []int, bytes []int) {
	t.Helper()
	for i := from; i <= g.LastIndex(); i++ {
		var l raft.Log
		must(t, g.disk.logs.GetLog(i, &l))
		if l.Type != raft.LogCommand {
			continue
		}
		b, err := command.Decode(l.Data)
		must(t, err)
		requests, bytes = append(requests, len(b.Requests)), append(bytes, len(l.Data))
	}
	return requests, bytes
}

func TestPropose_BatchesWithinBounds(t *testing.T) {
	t.Parallel()
	small := len(encoded(t, setRequest("k00", "value")))
	for name, c := range map[string]struct {
		bytes, count int
		values       []string
		want         []int
	}{
		"by count": {bytes: 1 << 20, count: 4,
			values: strings.Split(strings.Repeat("value ", 10), " ")[:10], want: []int{4, 4, 2}},
		"by bytes": {bytes: 3*small + 1, count: 100,
			values: strings.Split(strings.Repeat("value ", 7), " ")[:7], want: []int{3, 3, 1}},
		"a larger request gets its own entry": {bytes: 3 * small, count: 100, values: []string{"value",
			"value", strings.Repeat("x", 10*small), "value"}, want: []int{2, 1, 1}},
		"a larger request at the head gets its own entry": {bytes: 3 * small, count: 100,
			values: []string{strings.Repeat("x", 10*small), "value"}, want: []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			g, disk := heldGroup(t, func(o *Options) {
				o.Bounds.EntryBytes, o.Bounds.EntryCount, o.Bounds.Window = c.bytes, c.count, 1
			})
			from := g.LastIndex() + 1
			first := clog(t, g, disk)
			var requests []*command.Request
			for i, v := range c.values {
				requests = append(requests, setRequest(fmt.Sprintf("k%02d", i), v))
			}
			rest := proposeAll(t, g, limited(t), Committed, requests...)
			waiting(t, g, len(requests))
			disk.open()
			must(t, (<-first).err)
			for range requests {
				a := <-rest
				must(t, a.err)
				if a.a.Result.Outcome != kv.Applied || a.a.Index == 0 || a.a.Term != g.Term() {
					t.Errorf("request %d: %+v", a.i, a.a)
				}
			}
			got, sizes := entries(t, g, from)
			if d := cmp.Diff(append([]int{1}, c.want...), got); d != "" {
				t.Error(d)
			}
			for i, n := range got {
				if n > 1 && sizes[i] > c.bytes+command.HeaderSize {
					t.Errorf("entry %d has %d bytes, the bound is %d", i, sizes[i], c.bytes)
				}
			}
		})
	}
}

// unapplied opens a group whose machine does not report applied entries until release is called. The entries
// stay in flight although they are on disk.
func unapplied(t *testing.T, b Bounds) (g *Group, release func()) {
	t.Helper()
	o := alone(t, t.TempDir())
	o.Bounds = b
	g = openGroup(t, o)
	hold := make(chan struct{})
	release = sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	g.obs.applySeconds = slowObserver{hold}
	g.proposer.mu.Lock()
	g.proposer.alone = func() bool { return false } // as on a leader of other voters
	g.proposer.mu.Unlock()
	return g, release
}

// proposing makes requests one after the other, and waits for the effect of each.
type proposing struct {
	t       *testing.T
	g       *Group
	answers chan error
	held    bool // entries are not encoded, because the disk is held
}

func newProposing(t *testing.T, g *Group) *proposing {
	return &proposing{t: t, g: g, answers: make(chan error, 64)}
}

func (p *proposing) one(ack Ack, value string, queued, slots int) {
	p.t.Helper()
	go func() {
		_, err := p.g.ProposeRequest(limited(p.t), setRequest("k", value), ack)
		p.answers <- err
	}()
	p.see(queued, slots)
}

func (p *proposing) see(queued, slots int) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("there are not %d requests in the queue and %d entries in flight", queued, slots),
		func() bool {
			p.g.proposer.mu.Lock()
			defer p.g.proposer.mu.Unlock()
			return len(p.g.proposer.queue) == queued && len(p.g.proposer.slots) == slots &&
				(p.held || p.g.proposer.filling == nil)
		})
}

// together makes n requests that share the first entry in flight.
func (p *proposing) together(n int) {
	p.t.Helper()
	resume := p.g.proposer.pause()
	for i := range n {
		p.one(Committed, "v", i+1, 0)
	}
	resume()
	p.see(0, 1)
}

// awaitCounts waits until the queue is empty, unsynced requests wait for the disk, and inFlight requests are in
// flight.
func (p *proposing) awaitCounts(unsynced, inFlight int) {
	p.t.Helper()
	until(p.t, "the counts of requests in flight do not match", func() bool {
		p.g.proposer.mu.Lock()
		defer p.g.proposer.mu.Unlock()
		return p.g.proposer.early == 0 && p.g.proposer.unsynced == unsynced && p.g.proposer.inFlight == inFlight
	})
}

func (p *proposing) answered(n int) {
	p.t.Helper()
	for range n {
		must(p.t, <-p.answers)
	}
}

func TestPropose_BatchWaitsForAsManyRequestsAsAreInFlight(t *testing.T) {
	g, release := unapplied(t, Bounds{Window: 4, EntryCount: 3})
	from := g.LastIndex() + 1
	p := newProposing(t, g)
	p.one(Committed, "v", 0, 1)
	p.one(Committed, "v", 0, 2) // one more request, because one is in flight
	p.one(Committed, "v", 1, 2)
	p.one(Committed, "v", 0, 3) // two more requests, because two are in flight
	p.one(Committed, "v", 1, 3)
	p.one(Committed, "v", 2, 3)
	p.one(Committed, "v", 0, 4) // three more requests, which is the bound of an entry
	release()
	p.answered(7)
	got, _ := entries(t, g, from)
	if d := cmp.Diff([]int{1, 1, 2, 3}, got); d != "" {
		t.Error(d)
	}
}

func TestPropose_BatchStartsWhenEarlierEntriesAreDone(t *testing.T) {
	g, release := unapplied(t, Bounds{})
	p := newProposing(t, g)
	p.together(2)
	p.one(Committed, "v", 1, 1)
	until(t, "the queue was not checked", func() bool { return len(g.proposer.wake) == 0 })
	release() // nothing else wakes the queue
	p.answered(3)
}

func TestPropose_BatchWithFullBytesDoesNotWait(t *testing.T) {
	g, release := unapplied(t, Bounds{EntryBytes: 1 << 10})
	p := newProposing(t, g)
	p.together(3)
	p.one(Committed, strings.Repeat("v", 1<<10), 0, 2)
	release()
	p.answered(4)
}

// A request answered by the local disk waits for similar requests, but not for a quorum.
func TestPropose_DurableDoesNotWaitForQuorum(t *testing.T) {
	g, release := unapplied(t, Bounds{})
	p := newProposing(t, g)
	p.together(3)
	p.one(Durable, "v", 0, 2)
	p.answered(1)
	p.awaitCounts(0, 4)
	release()
	p.answered(3)
	p.awaitCounts(0, 0)
}

func TestPropose_DurableRequestsShareEntries(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window = 2 })
	from := g.LastIndex() + 1
	disk.close()
	p := newProposing(t, g)
	p.one(Durable, "v", 0, 1)
	p.held = true
	p.one(Durable, "v", 0, 2)
	p.one(Durable, "v", 1, 2) // the window is full
	p.one(Durable, "v", 2, 2)
	disk.open()
	p.answered(4)
	must(t, g.WaitApplied(limited(t), g.LastIndex()))
	if got, _ := entries(t, g, from); len(got) > 3 {
		t.Errorf("entries of %v", got)
	}
	p.awaitCounts(0, 0)
}

func TestPropose_AppliesInQueueOrder(t *testing.T) {
	t.Parallel()
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.EntryCount, o.Bounds.Window = 3, 2 })
	first := clog(t, g, disk)
	var requests []*command.Request
	for i := range 20 {
		requests = append(requests, setRequest("k", fmt.Sprint(i)))
	}
	rest := proposeAll(t, g, limited(t), Committed, requests...)
	disk.open()
	for range cap(first) {
		must(t, (<-first).err)
	}
	revisions := make([]uint64, len(requests))
	for range requests {
		a := <-rest
		must(t, a.err)
		revisions[a.i] = a.a.Result.Revisions[0]
	}
	for i := 1; i < len(revisions); i++ {
		if revisions[i] <= revisions[i-1] {
			t.Fatalf("revisions %v are not in the order of the requests", revisions)
		}
	}
	if got := peekValue(t, g, "k"); got != "19" {
		t.Errorf("k = %s", got)
	}
}

func TestPropose_CancelledInQueueIsNeverApplied(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window = 1 })
	first := clog(t, g, disk)
	ctx, giveUp := context.WithCancel(context.Background())
	gone := proposeAll(t, g, ctx, Committed, setRequest("gone", "v"))
	kept := proposeAll(t, g, limited(t), Committed, setRequest("kept", "v"))
	giveUp()
	wantCode(t, (<-gone).err, fault.Timeout)
	disk.open()
	must(t, (<-first).err)
	must(t, (<-kept).err)
	if got := peekValue(t, g, "gone"); got != "" {
		t.Errorf("a request that was not proposed has stored %q", got)
	}
}

func TestPropose_CancelledInFlightIsIndeterminate(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window = 1 })
	disk.close()
	ctx, giveUp := context.WithCancel(context.Background())
	out := make(chan error, 1)
	go func() {
		_, err := g.ProposeRequest(ctx, setRequest("k", "v"), Committed)
		out <- err
	}()
	until(t, "the request is not in flight", func() bool { return len(g.proposer.slots) == 1 && queuedCount(g) == 0 })
	giveUp()
	wantCode(t, <-out, fault.Indeterminate)
	disk.open()
	until(t, "the request was not applied", func() bool { return peekValue(t, g, "k") == "v" })
}

func TestPropose_FullQueueIsOverloaded(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"by number": func(o *Options) { o.Bounds.Queue, o.Bounds.Window = 3, 1 },
		"by bytes": func(o *Options) {
			o.Bounds.QueueBytes, o.Bounds.Window = 2*len(encoded(t, setRequest("k", "v")))+1, 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, disk := heldGroup(t, change)
			first := clog(t, g, disk)
			fill := proposeAll(t, g, limited(t), Committed, setRequest("k", "1"), setRequest("k", "2"),
				setRequest("k", "3"))
			_, err := g.ProposeRequest(limited(t), setRequest("over", "v"), Committed)
			wantCode(t, err, fault.Overloaded)
			disk.open()
			must(t, (<-first).err)
			for range 3 {
				must(t, (<-fill).err)
			}
			if got := peekValue(t, g, "over"); got != "" {
				t.Errorf("a refused request has stored %q", got)
			}
			put(t, g, "k", "4") // the queue has room again
			g.proposer.mu.Lock()
			defer g.proposer.mu.Unlock()
			if g.proposer.bytes != 0 {
				t.Errorf("%d bytes are counted in an empty queue", g.proposer.bytes)
			}
		})
	}
}

func TestClose_AnswersEveryCaller(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window = 1 })
	first := clog(t, g, disk)
	var requests []*command.Request
	for i := range 10 {
		requests = append(requests, setRequest(key(i), "v"))
	}
	rest := proposeAll(t, g, context.Background(), Committed, requests...)
	closed := make(chan error, 1)
	go func() { closed <- g.Close() }()
	for range requests {
		wantCode(t, (<-rest).err, fault.Unavailable)
	}
	disk.open()
	if err := (<-first).err; err != nil {
		t.Errorf("a write in flight should have finished, but got %v", err)
	}
	must(t, <-closed)
	_, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Committed)
	wantCode(t, err, fault.Unavailable)
}

// slowObserver stands in for the metric that is observed at the end of every apply.
type slowObserver struct{ hold chan struct{} }

func (s slowObserver) Observe(float64) { <-s.hold }

func TestClose_WaitsForCommittedEntries(t *testing.T) {
	t.Parallel()
	o := alone(t, t.TempDir())
	o.Bounds.Window, o.Bounds.EntryCount = 12, 1
	g := openGroup(t, o)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	g.obs.applySeconds = slowObserver{hold}
	last := g.LastIndex()
	out := make(chan answered, 12)
	for i := range 12 {
		go func() {
			a, err := g.ProposeRequest(context.Background(), setRequest(key(i), "v"), Committed)
			out <- answered{i, a, err}
		}()
	}
	until(t, "not everything is committed", func() bool { return g.raft.CommitIndex() >= last+12 })
	closed := make(chan error, 1)
	go func() { closed <- g.Close() }()
	// The machine takes longer than Close waits for proposals in flight.
	timer := time.NewTimer(drainLimit + 200*time.Millisecond)
	<-timer.C
	release()
	must(t, <-closed)
	for range 12 {
		select {
		case a := <-out:
			if a.err != nil {
				t.Errorf("request %d was committed, its caller got %v", a.i, a.err)
			}
		case <-within(t, 5*time.Second).Done():
			t.Fatal("a caller was never answered")
		}
	}
}

// openEntries returns how many entries are not finished.
func openEntries(g *Group) int {
	g.proposer.mu.Lock()
	defer g.proposer.mu.Unlock()
	return len(g.proposer.open)
}

func TestPropose_OnFollowerIsNotLeader(t *testing.T) {
	o := alone(t, t.TempDir())
	o.Bootstrap = false
	g := openGroup(t, o)
	for _, ack := range []Ack{Committed, Durable} {
		_, err := g.ProposeRequest(limited(t), setRequest("k", "v"), ack)
		wantCode(t, err, fault.NotLeader)
	}
	if n := openEntries(g); n != 0 {
		t.Errorf("%d entries of refused proposals are kept", n)
	}
}

func TestPropose_RefusesUndecodableRequest(t *testing.T) {
	g := openGroup(t, alone(t, t.TempDir()))
	last := g.LastIndex()
	_, err := g.ProposeRequest(limited(t), &command.Request{Kind: 99}, Committed)
	wantCode(t, err, fault.Invalid)
	if g.LastIndex() != last {
		t.Error("the refused request is in the log")
	}
}

func TestPropose_DurableWaitsForDisk(t *testing.T) {
	written := make(chan struct{}, 100)
	g, disk := heldGroup(t, func(o *Options) {
		inner := o.Step
		o.Step = func(step string) {
			inner(step)
			if step == "log-appended" {
				select {
				case written <- struct{}{}:
				default:
				}
			}
		}
	})
	disk.close()
	for len(written) > 0 {
		<-written
	}
	out := make(chan answered, 1)
	go func() {
		a, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Durable)
		if len(written) == 0 {
			err = errors.New("answered before the write of the log returned")
		}
		out <- answered{0, a, err}
	}()
	until(t, "the write is not in flight", func() bool { return g.disk.logs.Stalled() > 0 })
	disk.open()
	a := <-out
	must(t, a.err)
	if g.Holds(a.a.Position) != Held {
		t.Errorf("the log does not hold %+v", a.a.Position)
	}
	must(t, g.WaitApplied(limited(t), a.a.Index))
	if got := peekValue(t, g, "k"); got != "v" {
		t.Errorf("k = %q", got)
	}
}

func TestPropose_ConcurrentCallersGetTheirOwnResults(t *testing.T) {
	t.Parallel()
	g := openGroup(t, alone(t, t.TempDir()))
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 20 {
				k := fmt.Sprintf("w%d-%d", w, i)
				a := put(t, g, k, k)
				v, err := g.Machine().Get(store, k, 0)
				if err != nil || v.Revision != a.Result.Revisions[0] || string(v.Value) != k {
					t.Errorf("%s: answered revision %d, stored %q revision %d, %v", k, a.Result.Revisions[0], v.Value,
						v.Revision, err)
				}
			}
		})
	}
	wg.Wait()
}

// raft-wal would store a larger entry, and could never read it.
func TestPropose_RefusesRequestThatLogCannotRead(t *testing.T) {
	g := openGroup(t, alone(t, t.TempDir()))
	put(t, g, "k", "v")
	last := g.LastIndex()
	_, err := g.Propose(limited(t), make(Encoded, MaxRequest+1), Committed)
	if !fault.Is(err, fault.TooLarge) {
		t.Errorf("a request of %d bytes: %v", MaxRequest+1, err)
	}
	if now := g.LastIndex(); now != last {
		t.Errorf("the log grew from %d to %d", last, now)
	}
}
