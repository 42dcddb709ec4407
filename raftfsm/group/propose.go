package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Ack selects when a proposal is answered.
type Ack uint8

// Acknowledgements.
const (
	Committed Ack = iota // after a quorum has stored it and this leader has applied it; the answer has results
	Durable              // after this leader's disk has stored it; replication continues. No results
)

// Answer is the outcome of a proposal.
type Answer struct {
	raftlog.Position
	Result kv.Result // zero for Ack Durable
}

// MaxRequest is the maximum size in bytes of a request for the log. raft-wal can store an entry of more than 64 MiB,
// but it cannot read the entry back, so the group could not be opened again. 32 KiB of the 64 MiB are left for the
// other fields of the entry.
const MaxRequest = 64<<20 - 32<<10

// Encoded is a request in its log form, ready to be put into an entry.
type Encoded []byte

// proposal is one request in flight. Several goroutines may call settle. Only the first call sets the outcome.
type proposal struct {
	data    Encoded
	ack     Ack
	state   atomic.Uint32
	outcome chan outcome // capacity 1
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

// settle answers the proposal unless it is already answered.
func (p *proposal) settle(o outcome) {
	if p.state.Swap(settled) != settled {
		p.outcome <- o
	}
}

// proposer implements group commit: it puts concurrent requests into one log entry. It limits the size of an entry, the
// number of its requests and the number of entries in flight. An entry is encoded only when raft's main loop is about
// to write it, so requests can join it during the previous write (see writePath).
//
// Each entry costs messages to all other voters, so entries should not be nearly empty. A leader with other voters
// therefore submits the next entry only if the queue has one of these:
//
//   - At least as many requests as are in flight. If no entry is in flight, a single request is enough.
//   - Enough requests for a full entry.
//   - Requests with Ack Durable, and at least as many of them as are waiting for the local disk. These requests need no
//     quorum, so they wait only for earlier disk writes.
type proposer struct {
	raft   *raft.Raft
	logs   *raftlog.Store
	clock  *clock
	bounds Bounds
	obs    *groupMetrics
	alone  func() bool // reports whether this server is the only voter

	mu       sync.Mutex
	queue    []*proposal
	bytes    int
	early    int // requests in the queue that are answered after the local disk write
	closed   bool
	inFlight int               // requests in open entries
	unsynced int               // requests in open entries that wait for the local disk write
	paused   int               // while above 0 nothing is taken from the queue; see pause
	last     uint64            // number of the newest batch
	open     map[uint64]*batch // entries started and not finished, by the number of the batch
	filling  *batch            // the newest entry, as long as it takes more requests
	stores   []*batch          // entries with early requests that the log has accepted, for acknowledge
	wake     chan struct{}     // capacity 1: the queue has changed
	store    chan struct{}     // capacity 1: stores has changed

	slots    chan struct{} // has an element for each entry in flight; the capacity is Bounds.Window
	batches  chan *batch   // entries in flight, in log order
	stop     chan struct{}
	finished chan struct{} // closed when all entries are finished
	done     chan struct{} // closed when all goroutines have ended
	wg       sync.WaitGroup
}

// batch is one entry in flight.
type batch struct {
	proposals []*proposal
	size      int // bytes of its requests
	future    raft.ApplyFuture
	number    uint64           // identifies the entry until raft has given it an index
	early     int              // how many of its requests are counted in proposer.unsynced
	full      bool             // takes no more requests
	pos       raftlog.Position // position of the entry; set only if the entry has early requests
	stored    bool             // the log has accepted the entry; set only if the entry has early requests
}

func newProposer(l *raftlog.Store, c *clock, b Bounds, obs *groupMetrics, alone func() bool) *proposer {
	return &proposer{
		logs: l, clock: c, bounds: b, obs: obs, alone: alone, open: map[uint64]*batch{},
		wake: make(chan struct{}, 1), store: make(chan struct{}, 1), slots: make(chan struct{}, b.Window),
		batches: make(chan *batch, b.Window), stop: make(chan struct{}), finished: make(chan struct{}),
		done: make(chan struct{}),
	}
}

// start begins to pass requests to r. Call it before propose.
func (p *proposer) start(r *raft.Raft) {
	p.raft = r
	p.wg.Add(3)
	go p.run()
	go p.await()
	go p.acknowledge()
	go func() { p.wg.Wait(); close(p.done) }()
}

// propose adds data to the queue and waits for the outcome. The code of an error says whether the request was
// applied:
//
//	too_large      not applied: the request has more than MaxRequest bytes
//	not_leader     not applied: this server does not lead
//	overloaded     not applied: the queue is full
//	unavailable    not applied: the group is closing
//	timeout        not applied: ctx ended before the request was taken from the queue
//	indeterminate  may have been applied
func (p *proposer) propose(ctx context.Context, data Encoded, ack Ack) (Answer, error) {
	if len(data) > MaxRequest {
		return Answer{}, fault.New(fault.TooLarge, "group.Propose",
			fmt.Sprintf("the request has %d bytes, the limit of the log is %d", len(data), MaxRequest))
	}
	one := &proposal{data: data, ack: ack, outcome: make(chan outcome, 1)}
	timeline.Mark(timeline.Queued)
	if err := p.enqueue(one); err != nil {
		return Answer{}, err
	}
	select {
	case o := <-one.outcome:
		timeline.MarkEntries(timeline.Answered, o.answer.Index, o.answer.Index)
		return o.answer, o.err
	case <-ctx.Done():
	}
	if one.state.CompareAndSwap(queued, settled) {
		return Answer{}, &fault.Error{Code: fault.Timeout, Op: "group.Propose",
			Msg: "the write was not started in time", Err: ctx.Err()}
	}
	if one.state.Swap(settled) == settled {
		o := <-one.outcome // the outcome arrived at the same moment
		return o.answer, o.err
	}
	return Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "group.Propose",
		Msg: "the write was not confirmed in time; it may have been applied", Err: ctx.Err()}
}

func (p *proposer) enqueue(one *proposal) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosing()
	}
	if p.raft.State() != raft.Leader {
		// Without this check, the clock of this server could produce a timestamp while another server leads.
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

// rouse wakes run to look at the queue again.
func (p *proposer) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pause keeps proposals in the queue until resume is called. Entries in flight continue.
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

// run builds entries and hands them to raft.
func (p *proposer) run() {
	defer p.wg.Done()
	defer close(p.batches)
	for {
		select {
		case <-p.wake:
		case <-p.stop:
			return
		}
		for p.submitNext() {
		}
	}
}

// submitNext waits for a free slot and submits one entry. It returns false if no entry may start now (see gather), or
// if the proposer is stopping.
func (p *proposer) submitNext() bool {
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

// gather starts an entry with the waiting proposals. It returns nil if the proposer is paused, or if too few proposals
// are waiting (see ripe). If this server does not lead, gather refuses all waiting proposals and returns nil.
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
		return nil // await or acknowledge will call rouse
	}
	b := &batch{}
	p.fillLocked(b)
	if len(b.proposals) == 0 {
		return nil
	}
	p.last++
	b.number = p.last
	p.open[b.number], p.filling = b, b
	return b
}

// fillLocked moves proposals from the queue to the entry b until b is full or the queue is empty. A proposal larger
// than Bounds.EntryBytes gets an entry of its own, and so does a step of a restore.
func (p *proposer) fillLocked(b *batch) {
	n := 0
	for _, one := range p.queue {
		alone := command.IsRestore(one.data)
		if b.full || len(b.proposals) > 0 && (alone || b.size+len(one.data) > p.bounds.EntryBytes ||
			len(b.proposals) >= p.bounds.EntryCount) {
			break
		}
		n++
		p.bytes -= len(one.data)
		if one.ack == Durable {
			p.early--
		}
		if !one.state.CompareAndSwap(queued, taken) {
			continue // the caller has given up
		}
		b.proposals = append(b.proposals, one)
		b.size += len(one.data)
		b.full = alone
		p.inFlight++
		if one.ack == Durable {
			b.early++
			p.unsynced++
		}
	}
	rest := copy(p.queue, p.queue[n:])
	clear(p.queue[rest:])
	p.queue = p.queue[:rest]
}

// ripe reports whether enough proposals are queued for the next entry (see proposer). On a leader without other
// voters it always returns true.
func (p *proposer) ripe() bool {
	return p.alone() || len(p.queue) >= min(p.inFlight, p.bounds.EntryCount) || p.bytes >= p.bounds.EntryBytes ||
		p.early > 0 && p.early >= p.unsynced
}

// abandon answers the proposals that raft has not answered. raft must have shut down.
func (p *proposer) abandon() {
	p.mu.Lock()
	left := p.open
	p.open = nil
	p.mu.Unlock()
	for _, b := range left {
		b.settle(outcome{err: applyError(raft.ErrRaftShutdown)})
	}
}

// settle gives every proposal of the entry the same outcome.
func (b *batch) settle(o outcome) {
	for _, one := range b.proposals {
		one.settle(o)
	}
}

// applyError translates an error of raft.Apply. It returns fault.NotLeader if the entry was certainly not appended.
// Otherwise it returns fault.Indeterminate.
func applyError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return &fault.Error{Code: fault.NotLeader, Op: "group.Propose", Msg: "this server does not lead the group",
			Err: err}
	default:
		return &fault.Error{Code: fault.Indeterminate, Op: "group.Propose",
			Msg: "leadership or the log was lost while the write was in flight; it may have been applied", Err: err}
	}
}

// drain refuses new proposals and answers the queued ones with an error. It then waits for the proposals in flight, for
// at most limit. Call drain before raft shuts down, because raft gives no result for entries that it has not applied
// before the shutdown.
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

// refuseLocked answers every proposal in the queue with err.
func (p *proposer) refuseLocked(err error) {
	for _, one := range p.queue {
		if one.state.CompareAndSwap(queued, settled) {
			one.outcome <- outcome{err: err}
		}
	}
	p.queue, p.bytes, p.early = nil, 0, 0
}

// wait waits until the goroutines have ended, at most for limit.
func (p *proposer) wait(limit time.Duration) {
	select {
	case <-p.done:
	case <-time.After(limit):
	}
}
