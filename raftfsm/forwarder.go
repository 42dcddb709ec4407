package raftfsm

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

// Bounds of the proposals that travel in one call.
const (
	forwardWindow = 4       // calls under way to one server for one group and kind of answer
	forwardCount  = 256     // proposals in one call
	forwardBytes  = 1 << 20 // and their bytes; a larger one travels alone
)

// forwarder sends proposals to leaders. Those that come while calls are under way share
// the next one, so that many clients cost the leader few calls; calls share one connection.
// The next call waits for as many proposals as those under way carry, as entries of a
// group do.
type forwarder struct {
	peers   Peers
	metrics *Metrics
	await   func(ctx context.Context, gid uint32, to raft.ServerID) (context.Context, func()) // see Host.await
	ctx     context.Context                                                                   // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex // guards what follows
	lanes map[laneKey]*lane
}

type laneKey struct {
	to    raft.ServerID
	group uint32
	ack   group.Ack
}

// lane is what goes to one server for one group, with one kind of answer: who waits for a
// disk alone must not wait for a quorum.
type lane struct {
	queue   []*forwarded
	bytes   int // in the queue
	running int // calls under way
	flying  int // proposals in them
}

// ripe reports whether what waits is worth a call now.
func (l *lane) ripe() bool {
	return len(l.queue) >= min(l.flying, forwardCount) || l.bytes >= forwardBytes
}

// forwarded is one proposal on its way.
type forwarded struct {
	data     group.Encoded
	values   bool
	deadline time.Time // zero = none
	state    atomic.Uint32
	outcome  chan forwardOutcome // one slot
}

type forwardOutcome struct {
	answer group.Answer
	err    error
}

// States of a forwarded proposal.
const (
	forwardQueued uint32 = iota
	forwardTaken
	forwardGone // its caller has given up before it was taken
)

func newForwarder(h *Host) *forwarder {
	f := &forwarder{peers: h.opts.Peers, metrics: h.metrics, await: h.await, lanes: map[laneKey]*lane{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// propose sends one proposal and waits for its outcome. Errors are those of Peers.Call and
// of the server's group; timeout if ctx ended before it was sent, which was surely not done.
func (f *forwarder) propose(ctx context.Context, key laneKey, data group.Encoded, values bool) (group.Answer, error) {
	one := &forwarded{data: data, values: values, outcome: make(chan forwardOutcome, 1)}
	one.deadline, _ = ctx.Deadline()
	f.enqueue(key, one)
	select {
	case o := <-one.outcome:
		return o.answer, o.err
	case <-ctx.Done():
	}
	if one.state.CompareAndSwap(forwardQueued, forwardGone) {
		return group.Answer{}, &fault.Error{Code: fault.Timeout, Op: "raftfsm.forward", Msg: "the write was not sent to the leader in time", Err: ctx.Err()}
	}
	select {
	case o := <-one.outcome:
		return o.answer, o.err
	default:
	}
	return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward", Msg: "the leader did not answer in time; the write may have been applied", Err: ctx.Err()}
}

func (f *forwarder) enqueue(key laneKey, one *forwarded) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		one.outcome <- forwardOutcome{err: errClosing()}
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

func errClosing() error {
	return fault.New(fault.Unavailable, "raftfsm.forward", "this node is shutting down")
}

// run makes calls as long as proposals wait.
func (f *forwarder) run(key laneKey, l *lane) {
	for batch := f.take(key, l, nil); batch != nil; batch = f.take(key, l, batch) {
		f.call(key, batch)
	}
}

// take gathers the proposals of the call after done; nil ends a run.
func (f *forwarder) take(key laneKey, l *lane, done []*forwarded) []*forwarded {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.flying -= len(done)
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

// take gathers what goes into one call, nil if nobody waits any more.
func (l *lane) take() []*forwarded {
	var batch []*forwarded
	size, n := 0, 0
	for _, one := range l.queue {
		if len(batch) > 0 && (size+len(one.data) > forwardBytes || len(batch) >= forwardCount) {
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
	l.flying += len(batch)
	return batch
}

// call sends a batch and gives everyone in it an outcome. It lasts as long as the most
// patient of them waits, and no longer than until another leader is known.
func (f *forwarder) call(key laneKey, batch []*forwarded) {
	ctx, cancel := f.patience(batch)
	defer cancel()
	b := binary.AppendUvarint(message(formBatches, key.group), uint64(key.ack))
	b = binary.AppendUvarint(b, uint64(len(batch)))
	for _, one := range batch {
		b = appendString(append(b, boolByte(one.values)), one.data)
	}
	f.metrics.forwardBatch.Observe(float64(len(batch)))
	ctx, done := f.await(ctx, key.group, key.to)
	defer done()
	out, err := f.peers.Call(ctx, string(key.to), MethodPropose, b)
	err = endedBy(ctx, "raftfsm.forward", err)
	if fault.Is(err, fault.Invalid) || fault.Is(err, fault.Unimplemented) {
		f.oneByOne(ctx, key, batch)
		return
	}
	f.metrics.forwarded(forwardPropose, err)
	outcomes := readOutcomes(out, err, len(batch))
	for i, one := range batch {
		one.outcome <- outcomes[i]
	}
}

// oneByOne sends proposals in the first form, to a server that refused a batch as a whole,
// before it did anything: it is of an older version.
func (f *forwarder) oneByOne(ctx context.Context, key laneKey, batch []*forwarded) {
	var wg sync.WaitGroup
	for _, one := range batch {
		wg.Go(func() {
			b := binary.AppendUvarint(message(formFirst, key.group), uint64(key.ack))
			b = append(append(b, boolByte(one.values)), one.data...)
			out, err := f.peers.Call(ctx, string(key.to), MethodPropose, b)
			err = endedBy(ctx, "raftfsm.forward", err)
			f.metrics.forwarded(forwardPropose, err)
			if err != nil {
				one.outcome <- forwardOutcome{err: err}
				return
			}
			a, err := readAnswer(out)
			one.outcome <- forwardOutcome{answer: a, err: err}
		})
	}
	wg.Wait()
}

func (f *forwarder) patience(batch []*forwarded) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, one := range batch {
		if one.deadline.IsZero() {
			return context.WithCancel(f.ctx)
		}
		if one.deadline.After(last) {
			last = one.deadline
		}
	}
	return context.WithDeadline(f.ctx, last)
}

// readOutcomes decodes the answer to a batch of n; a failed call is the outcome of each.
func readOutcomes(b []byte, err error, n int) []forwardOutcome {
	out := make([]forwardOutcome, n)
	r := newFrame(b)
	for i := range out {
		if err == nil {
			failed, body := r.Byte() == 1, r.Bytes()
			switch {
			case r.Bad:
				err = &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward", Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
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

// close ends calls under way: their callers are told that the outcome is not known.
func (f *forwarder) close() {
	f.mu.Lock()
	f.cancel()
	for _, l := range f.lanes {
		for _, one := range l.queue {
			if one.state.CompareAndSwap(forwardQueued, forwardTaken) {
				one.outcome <- forwardOutcome{err: errClosing()}
			}
		}
		l.queue = nil
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// serveProposeOne answers the first form, which servers of older versions send.
func (h *Host) serveProposeOne(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	ack, values, data := group.Ack(r.Uvarint()), r.Uvarint() == 1, r.All()
	if r.Bad || ack > group.Durable { //nolint:gosec // bounded
		return nil, errFrame(MethodPropose)
	}
	a, err := h.proposeFor(ctx, g, data, ack, values)
	if err != nil {
		return nil, err
	}
	return appendAnswer(nil, &a), nil
}

// servePropose proposes every request of a batch and answers them in order.
func (h *Host) servePropose(ctx context.Context, g *group.Group, r *frame) ([]byte, error) {
	ack, n := group.Ack(r.Uvarint()), r.Uvarint()
	if r.Bad || ack > group.Durable || n == 0 || n > forwardCount {
		return nil, errFrame(MethodPropose)
	}
	type item struct {
		values bool
		data   []byte
	}
	items := make([]item, n)
	for i := range items {
		items[i] = item{values: r.Byte() == 1, data: r.Bytes()}
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, errFrame(MethodPropose)
	}
	answers := make([][]byte, n)
	var wg sync.WaitGroup
	for i, it := range items {
		wg.Go(func() {
			a, err := h.proposeFor(ctx, g, it.data, ack, it.values)
			if err != nil {
				answers[i] = appendString([]byte{1}, fault.Marshal(err))
				return
			}
			answers[i] = appendString([]byte{0}, appendAnswer(nil, &a))
		})
	}
	wg.Wait()
	var out []byte
	for _, a := range answers {
		out = append(out, a...)
	}
	return out, nil
}

// proposeFor proposes a request of another node.
func (h *Host) proposeFor(ctx context.Context, g *group.Group, data []byte, ack group.Ack, values bool) (group.Answer, error) {
	if values {
		if err := h.WritesAllowed(); err != nil {
			return group.Answer{}, err
		}
	}
	if err := whole(data); err != nil {
		return group.Answer{}, err
	}
	return g.Propose(ctx, data, outcomeKnown(g, ack))
}
