package group

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Ack says when a proposal is answered.
type Ack uint8

// The acknowledgements.
const (
	Committed Ack = iota // a quorum holds it and this leader has applied it; the answer carries results
	Durable              // it is on this leader's disk; replication goes on after. No results
)

// Position is a place in the log of one group.
type Position struct{ Term, Index uint64 }

// Answer is the outcome of a proposal.
type Answer struct {
	Position
	Result kv.Result // zero for Ack Durable
}

// Encoded is a request in its log form, ready to be put into an entry.
type Encoded []byte

// proposal is one request on its way. Exactly one of the goroutines that can answer it
// does: settle says which.
type proposal struct {
	data    Encoded
	ack     Ack
	state   atomic.Uint32
	outcome chan outcome // one slot
}

type outcome struct {
	answer Answer
	err    error
}

const (
	queued uint32 = iota
	taken
	settled
)

// settle answers the proposal unless it was answered before.
func (p *proposal) settle(o outcome) {
	if p.state.Swap(settled) != settled {
		p.outcome <- o
	}
}

// proposer is the group commit: it gathers concurrent requests into one log entry,
// bounded in bytes and number, while up to window earlier entries are on their way.
//
// An entry costs every server a write to its disk and many hand-overs between goroutines,
// whatever it carries. So while entries are on their way the next one waits for as many
// requests as those carry together: entries of like size follow each other, and not a full
// one and one of the few requests that came just after it. At worst a request waits until
// those before it are done, which for a request that is answered by this disk alone means
// those that wait for it, too: it never waits for a quorum while there is room in the window.
type proposer struct {
	raft   *raft.Raft
	logs   *logs
	clock  *clock
	bounds Bounds
	obs    *groupMetrics

	mu     sync.Mutex
	queue  []*proposal
	bytes  int
	early  int // of the queue: what is answered once this disk has it
	closed bool
	flying int                 // requests in open entries
	going  int                 // of them: what is answered by this disk and was not yet
	paused int                 // nothing is taken from the queue; see pause
	open   map[*batch]struct{} // handed to raft, not settled
	wake   chan struct{}       // one slot

	slots    chan struct{} // window
	inflight chan *batch   // in log order
	durable  chan *batch
	stop     chan struct{}
	done     chan struct{} // closed when all goroutines have ended
	wg       sync.WaitGroup
}

// batch is one entry on its way.
type batch struct {
	proposals []*proposal
	future    raft.ApplyFuture
	pos       Position // set by the durable signal
	early     int      // how many of them are counted in proposer.going
}

func newProposer(r *raft.Raft, l *logs, c *clock, b Bounds, obs *groupMetrics) *proposer {
	p := &proposer{
		raft: r, logs: l, clock: c, bounds: b, obs: obs, open: map[*batch]struct{}{},
		wake: make(chan struct{}, 1), slots: make(chan struct{}, b.Window),
		inflight: make(chan *batch, b.Window), durable: make(chan *batch, b.Window+1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	p.wg.Add(3)
	go p.run()
	go p.await()
	go p.acknowledge()
	go func() { p.wg.Wait(); close(p.done) }()
	return p
}

// propose queues data and waits for its outcome. Errors:
//
//	not_leader     surely not done here
//	overloaded     surely not done: the queue is full
//	unavailable    surely not done: the group is closing
//	timeout        surely not done: ctx ended before it was taken from the queue
//	indeterminate  may have been done
func (p *proposer) propose(ctx context.Context, data Encoded, ack Ack) (Answer, error) {
	one := &proposal{data: data, ack: ack, outcome: make(chan outcome, 1)}
	if err := p.enqueue(one); err != nil {
		return Answer{}, err
	}
	select {
	case o := <-one.outcome:
		return o.answer, o.err
	case <-ctx.Done():
	}
	if one.state.CompareAndSwap(queued, settled) {
		return Answer{}, &fault.Error{Code: fault.Timeout, Op: "group.Propose", Msg: "the write was not started in time", Err: ctx.Err()}
	}
	if one.state.Swap(settled) == settled {
		o := <-one.outcome // it was answered in this very moment
		return o.answer, o.err
	}
	return Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "group.Propose", Msg: "the write was not confirmed in time; it may have been applied", Err: ctx.Err()}
}

func (p *proposer) enqueue(one *proposal) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosing()
	}
	if p.raft.State() != raft.Leader {
		// Not only to save the way through the queue: a stamp of this server's clock must
		// not be given out while it follows another's.
		p.mu.Unlock()
		return errNotLeader("group.Propose")
	}
	if len(p.queue) >= p.bounds.Queue || p.bytes >= p.bounds.QueueBytes {
		p.mu.Unlock()
		p.obs.refused.Inc()
		return &fault.Error{Code: fault.Overloaded, Op: "group.Propose", Msg: "too many writes are waiting for the log",
			Hint: "retry after a moment; if it lasts, the disk or the other voters are too slow"}
	}
	p.queue = append(p.queue, one)
	p.bytes += len(one.data)
	if one.ack == Durable {
		p.early++
	}
	p.mu.Unlock()
	p.rouse()
	return nil
}

// rouse lets run look at the queue again.
func (p *proposer) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pause lets proposals wait in the queue until resume is called. Entries on their way go on.
func (p *proposer) pause() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused++
	return func() {
		p.mu.Lock()
		p.paused--
		p.mu.Unlock()
		p.rouse()
	}
}

func errClosing() error {
	return fault.New(fault.Unavailable, "group.Propose", "this node is shutting down")
}

// run forms entries and hands them to raft.
func (p *proposer) run() {
	defer p.wg.Done()
	defer close(p.inflight)
	for {
		select {
		case <-p.wake:
		case <-p.stop:
			return
		}
		for p.next() {
		}
	}
}

// next submits one entry; false if nothing is waiting.
func (p *proposer) next() bool {
	select {
	case p.slots <- struct{}{}:
	case <-p.stop:
		return false
	}
	b := p.gather()
	if b == nil {
		<-p.slots
		return false
	}
	p.submit(b)
	return true
}

// gather takes waiting proposals within the bounds of an entry; one that is larger than
// the byte bound travels alone, and so does a step of a restore.
func (p *proposer) gather() *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused > 0 {
		return nil
	}
	if p.raft.State() != raft.Leader { // see enqueue
		p.refuseLocked(errNotLeader("group.Propose"))
		return nil
	}
	if !p.ripe() {
		return nil // await or acknowledge will look again
	}
	var b batch
	size, n, alone := 0, 0, false
	for _, one := range p.queue {
		alone = command.IsRestore(one.data)
		if len(b.proposals) > 0 && (alone || size+len(one.data) > p.bounds.EntryBytes || len(b.proposals) >= p.bounds.EntryCount) {
			break
		}
		n++
		p.bytes -= len(one.data)
		if one.ack == Durable {
			p.early--
		}
		if !one.state.CompareAndSwap(queued, taken) {
			continue // its caller gave up
		}
		b.proposals = append(b.proposals, one)
		size += len(one.data)
		if one.ack == Durable {
			b.early++
		}
		if alone {
			break
		}
	}
	rest := copy(p.queue, p.queue[n:])
	clear(p.queue[rest:])
	p.queue = p.queue[:rest]
	if len(b.proposals) == 0 {
		return nil
	}
	p.open[&b] = struct{}{}
	p.flying += len(b.proposals)
	p.going += b.early
	return &b
}

// ripe reports whether what waits is to become an entry now; see proposer.
func (p *proposer) ripe() bool {
	return len(p.queue) >= min(p.flying, p.bounds.EntryCount) || p.bytes >= p.bounds.EntryBytes || p.early > 0 && p.early >= p.going
}

// written notes that nothing in the entry waits for this disk any more.
func (p *proposer) written(b *batch) {
	p.mu.Lock()
	p.going -= b.early
	b.early = 0
	p.mu.Unlock()
	p.rouse()
}

// submit encodes the entry and gives it to raft; Apply blocks while raft's main loop is
// busy writing, and meanwhile the queue gathers the next entry.
func (p *proposer) submit(b *batch) {
	size, early, version := command.HeaderSize, b.early, uint8(command.First)
	for _, one := range b.proposals {
		size += len(one.data)
		version = max(version, command.Needs(one.data))
	}
	watch := early > 0
	data := command.AppendHeader(make([]byte, 0, size), version, p.clock.leader(), len(b.proposals))
	for _, one := range b.proposals {
		data = append(data, one.data...)
	}
	if watch {
		p.logs.onDurable(data, func(index, term uint64) {
			b.pos = Position{Term: term, Index: index}
			p.durable <- b // has room for every entry in the window
		})
	}
	p.obs.entry(len(b.proposals), size)
	b.future = p.raft.ApplyLog(raft.Log{Data: data, Extensions: owing(p.logs.self, early)}, 0)
	if watch {
		// A refused entry never becomes durable: take the signal back when its fate is known.
		future := b.future
		b.future = withdrawing{future, func() {
			_ = p.logs.unsynced.wait(future.Index()) // what was counted as owed is acknowledged, if the disk has it
			p.logs.forgetDurable(data)
		}}
	}
	p.inflight <- b
}

// withdrawing runs done once the future is settled.
type withdrawing struct {
	raft.ApplyFuture
	done func()
}

// Error waits for the entry.
func (w withdrawing) Error() error {
	err := w.ApplyFuture.Error()
	w.done()
	return err
}

// await answers proposals whose entries are settled.
func (p *proposer) await() {
	defer p.wg.Done()
	defer close(p.durable)
	for b := range p.inflight {
		p.finish(b)
		p.mu.Lock()
		delete(p.open, b)
		p.flying -= len(b.proposals)
		p.mu.Unlock()
		<-p.slots
		p.written(b)
	}
}

// abandon answers what raft has left unsettled. raft must have been shut down.
func (p *proposer) abandon() {
	p.mu.Lock()
	left := p.open
	p.open = nil
	p.mu.Unlock()
	for b := range left {
		b.settle(outcome{err: applyError(raft.ErrRaftShutdown)})
	}
}

func (p *proposer) finish(b *batch) {
	if err := b.future.Error(); err != nil {
		b.settle(outcome{err: applyError(err)})
		return
	}
	done, ok := b.future.Response().(*applied)
	if !ok || done.Err != nil || len(done.Results) != len(b.proposals) {
		err := &fault.Error{Code: fault.Indeterminate, Op: "group.Propose", Msg: "the entry was committed but could not be applied here"}
		if ok {
			err.Err = done.Err
		}
		b.settle(outcome{err: err})
		return
	}
	pos := Position{Index: b.future.Index(), Term: done.term}
	for i, one := range b.proposals {
		one.settle(outcome{answer: Answer{Position: pos, Result: done.Results[i]}})
	}
}

// settle answers every proposal of the entry alike.
func (b *batch) settle(o outcome) {
	for _, one := range b.proposals {
		one.settle(o)
	}
}

// acknowledge answers what only waits for this node's disk.
func (p *proposer) acknowledge() {
	defer p.wg.Done()
	for b := range p.durable {
		for _, one := range b.proposals {
			if one.ack == Durable {
				one.settle(outcome{answer: Answer{Position: b.pos}})
			}
		}
		p.written(b)
	}
}

// applyError tells what is known about an entry raft did not apply.
func applyError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return &fault.Error{Code: fault.NotLeader, Op: "group.Propose", Msg: "this server does not lead the group", Err: err}
	default:
		return &fault.Error{Code: fault.Indeterminate, Op: "group.Propose", Msg: "leadership or the log was lost while the write was on its way; it may have been applied", Err: err}
	}
}

// drain refuses new proposals, lets those under way finish for at most limit, and
// answers what is still queued. It runs before raft is shut down: raft never settles an
// entry that it has committed but not yet handed to the machine at that moment.
func (p *proposer) drain(limit time.Duration) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.refuseLocked(errClosing())
	p.mu.Unlock()
	close(p.stop)
	p.wait(limit)
}

// refuseLocked answers everything in the queue.
func (p *proposer) refuseLocked(err error) {
	for _, one := range p.queue {
		if one.state.CompareAndSwap(queued, settled) {
			one.outcome <- outcome{err: err}
		}
	}
	p.queue, p.bytes, p.early = nil, 0, 0
}

// wait waits for the goroutines, at most for limit.
func (p *proposer) wait(limit time.Duration) {
	select {
	case <-p.done:
	case <-time.After(limit):
	}
}
