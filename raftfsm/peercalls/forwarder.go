package peercalls

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/raftfsm/group"
)

// Bounds of forwarded proposals.
const (
	forwardWindow = 4       // calls in flight to one server for one group and kind of answer
	ForwardCount  = 256     // proposals in one call
	forwardBytes  = 1 << 20 // bytes of proposals in one call; a larger proposal gets a call of its own
)

// forwarder sends proposals to the leaders of groups, several in one call. While calls are in flight, further proposals
// wait in a queue. They are sent when there are as many of them as proposals in flight, or enough to fill a call. The
// proposer in package group follows the same rule.
type forwarder struct {
	peers   Peers
	metrics Observer
	calls   *leaderCalls
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex // guards the following fields
	lanes map[laneKey]*lane
}

type laneKey struct {
	to    raft.ServerID
	group uint32
	ack   group.Ack
}

// lane is the queue of proposals to one server, for one group and one kind of acknowledgement. Each kind has a separate
// queue, so that a proposal that needs only a disk write does not wait for proposals that need a quorum.
type lane struct {
	queue    []*forwarded
	bytes    int // in the queue
	running  int // calls in flight
	inFlight int // proposals in these calls
}

// ripe reports whether the waiting proposals are to be sent now.
func (l *lane) ripe() bool {
	return len(l.queue) >= min(l.inFlight, ForwardCount) || l.bytes >= forwardBytes
}

// forwarded is one proposal in flight.
type forwarded struct {
	data     group.Encoded
	values   bool                // the request stores values
	deadline time.Time           // zero = none
	state    atomic.Uint32       // forwardQueued, forwardTaken or forwardGone
	last     bool                // has the latest deadline of its call; guarded by forwarder.mu
	outcome  chan forwardOutcome // capacity 1
}

type forwardOutcome struct {
	answer group.Answer
	err    error
}

// States of a forwarded proposal.
const (
	forwardQueued uint32 = iota
	forwardTaken
	forwardGone // the caller gave up before the proposal was taken
)

func newForwarder(p Peers, m Observer, calls *leaderCalls) *forwarder {
	f := &forwarder{peers: p, metrics: m, calls: calls, lanes: map[laneKey]*lane{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// propose sends one proposal and waits for its outcome. hasValues is true if the request stores values. If ctx ends
// first, propose returns fault.Timeout if the proposal was certainly not sent, and otherwise fault.Indeterminate.
// propose also returns the errors of Peers.Call and of the remote group.
func (f *forwarder) propose(ctx context.Context, key laneKey, data group.Encoded, hasValues bool) (group.Answer,
	error) {
	one := &forwarded{data: data, values: hasValues, outcome: make(chan forwardOutcome, 1)}
	one.deadline, _ = ctx.Deadline()
	timeline.Mark(timeline.Forward)
	f.enqueue(key, one)
	select {
	case o := <-one.outcome:
		timeline.Mark(timeline.Forwarded)
		return o.answer, o.err
	case <-ctx.Done():
	}
	if one.state.CompareAndSwap(forwardQueued, forwardGone) {
		return group.Answer{}, &fault.Error{Code: fault.Timeout, Op: "raftfsm.forward",
			Msg: "the write was not sent to the leader in time", Err: ctx.Err()}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && f.isLast(one) {
		o := <-one.outcome // arrives soon, because the call ends at the same deadline
		return o.answer, o.err
	}
	// The call goes on for its other proposals. So this proposal may still be sent.
	select {
	case o := <-one.outcome:
		return o.answer, o.err
	default:
	}
	return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward",
		Msg: "the leader did not answer in time; the write may have been applied", Err: ctx.Err()}
}

// isLast reports whether the given proposal has the latest deadline of all proposals in its call. If so, the call ends
// at that deadline.
func (f *forwarder) isLast(one *forwarded) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return one.last
}

func (f *forwarder) enqueue(key laneKey, one *forwarded) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		one.outcome <- forwardOutcome{err: ErrClosing()}
		return
	}
	l := f.lanes[key]
	if l == nil {
		l = &lane{}
		f.lanes[key] = l
	}
	l.queue = append(l.queue, one)
	l.bytes += len(one.data)
	if l.running < forwardWindow && l.ripe() {
		l.running++
		f.wg.Go(func() { f.run(key, l) })
	}
}

// ErrClosing returns the error for calls on a node that is shutting down.
func ErrClosing() error {
	return fault.New(fault.Unavailable, "raftfsm.forward", "this node is shutting down")
}

// run makes calls while proposals wait.
func (f *forwarder) run(key laneKey, l *lane) {
	for batch := f.take(key, l, nil); batch != nil; batch = f.take(key, l, batch) {
		f.call(key, batch)
	}
}

// take returns the proposals for the next call that run makes, or nil if run must end. done contains the proposals of
// the previous call, which has ended. It is nil before the first call.
func (f *forwarder) take(key laneKey, l *lane, done []*forwarded) []*forwarded {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.inFlight -= len(done)
	var batch []*forwarded
	if l.ripe() {
		batch = l.take()
	}
	if batch == nil {
		if l.running--; l.running == 0 {
			delete(f.lanes, key)
		}
	}
	return batch
}

// take returns the proposals for one call, or nil if none is waiting.
func (l *lane) take() []*forwarded {
	var batch []*forwarded
	size, n := 0, 0
	for _, one := range l.queue {
		if len(batch) > 0 && (size+len(one.data) > forwardBytes || len(batch) >= ForwardCount) {
			break
		}
		n++
		l.bytes -= len(one.data)
		if one.state.CompareAndSwap(forwardQueued, forwardTaken) {
			batch, size = append(batch, one), size+len(one.data)
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	l.inFlight += len(batch)
	until := latest(batch)
	for _, one := range batch {
		one.last = !until.IsZero() && one.deadline.Equal(until)
	}
	return batch
}

// latest returns the latest deadline of the proposals in a batch. It returns the zero time if at least one proposal has
// no deadline.
func latest(batch []*forwarded) (t time.Time) {
	for _, one := range batch {
		if one.deadline.IsZero() {
			return time.Time{}
		}
		if one.deadline.After(t) {
			t = one.deadline
		}
	}
	return t
}

// call sends a batch in one call and gives each proposal its outcome. It stops waiting at the latest deadline in the
// batch, or when this node learns of another leader.
func (f *forwarder) call(key laneKey, batch []*forwarded) {
	ctx, cancel := f.patience(batch)
	defer cancel()
	b := binary.AppendUvarint(Message(key.group), uint64(key.ack))
	b = binary.AppendUvarint(b, uint64(len(batch)))
	for _, one := range batch {
		b = lenprefix.Append(append(b, BoolByte(one.values)), one.data)
	}
	f.metrics.ForwardedBatch(len(batch))
	ctx, done := f.calls.begin(ctx, key.group, key.to)
	defer done()
	out, err := f.peers.Call(ctx, string(key.to), MethodPropose, b)
	err = endedBy(ctx, "raftfsm.forward", err)
	f.metrics.Forwarded(ForwardPropose, err)
	outcomes := readOutcomes(out, err, len(batch))
	for i, one := range batch {
		one.outcome <- outcomes[i]
	}
}

func (f *forwarder) patience(batch []*forwarded) (context.Context, context.CancelFunc) {
	if until := latest(batch); !until.IsZero() {
		return context.WithDeadline(f.ctx, until)
	}
	return context.WithCancel(f.ctx)
}

// readOutcomes decodes the answer to a batch of n proposals and returns their outcomes. err is the error of the call.
// If err is not nil, every outcome has this error.
func readOutcomes(b []byte, err error, n int) []forwardOutcome {
	out := make([]forwardOutcome, n)
	r := NewFrame(b)
	for i := range out {
		if err == nil {
			failed, body := r.Byte() == 1, r.Bytes()
			switch {
			case r.Bad:
				err = &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward",
					Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
			case failed:
				out[i].err = fault.Unmarshal(body)
				continue
			default:
				out[i].answer, out[i].err = readAnswer(body)
				continue
			}
		}
		out[i].err = err
	}
	return out
}

// close ends the calls in flight and waits for their goroutines. Callers whose proposals are still queued get
// fault.Unavailable.
func (f *forwarder) close() {
	f.mu.Lock()
	f.cancel()
	for _, l := range f.lanes {
		for _, one := range l.queue {
			if one.state.CompareAndSwap(forwardQueued, forwardTaken) {
				one.outcome <- forwardOutcome{err: ErrClosing()}
			}
		}
		l.queue = nil
	}
	f.mu.Unlock()
	f.wg.Wait()
}
