package group

import (
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// writePath is the raft.LogStore that raft writes to. It adds the queued requests of the proposer to new entries, and
// passes the entries to the log. On a leader, an entry takes these steps:
//
//  1. Gather: the proposer starts an entry with queued requests, and passes a placeholder to raft.
//  2. Room: raft's main loop waits in StoreLogs until the log accepts another write. Requests that arrive meanwhile
//     join the entry.
//  3. Fill: the placeholder gets its content, the encoded requests.
//  4. Store: the log adds a checksum and writes the entry. If there are other voters, the log returns before the entry
//     is on disk (see raftlog.Store.StoreLogs).
//  5. Replicate: raft sends the entry to the followers. transport.Guard holds their answers back until the leader's own
//     disk has the entry.
//  6. Acknowledge: the requests that wait only for the local disk are answered.
//  7. Finish: raft has committed and applied the entry, and all other requests are answered.
//
// A placeholder has no data, and its Extensions contain the number of its batch. An entry of another leader never looks
// like a placeholder, because transport.Guard refuses Extensions that are not a checksum.
type writePath struct {
	*raftlog.Store
	proposer *proposer
}

// StoreLog implements raft.LogStore.
func (w writePath) StoreLog(l *raft.Log) error { return w.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. It fills the placeholders among the entries and appends all entries to the log.
// Only raft's main loop calls it.
func (w writePath) StoreLogs(entries []*raft.Log) error {
	w.Room()
	var early []*batch
	for _, l := range entries {
		b, err := w.proposer.fill(l)
		if err != nil {
			return err
		}
		if b != nil {
			early = append(early, b)
		}
	}
	if err := w.Store.StoreLogs(entries); err != nil {
		return err
	}
	w.proposer.stored(early)
	return nil
}

// placeholderMark is the first byte of the Extensions of a placeholder. The number of the batch follows.
const placeholderMark = 'P'

func placeholder(number uint64) raft.Log {
	return raft.Log{Extensions: binary.BigEndian.AppendUint64([]byte{placeholderMark}, number)}
}

// batchNumber returns the batch number that a placeholder contains. It returns false if the entry is not a placeholder.
func batchNumber(l *raft.Log) (number uint64, ok bool) {
	if len(l.Data) > 0 || len(l.Extensions) != 9 || l.Extensions[0] != placeholderMark {
		return 0, false
	}
	return binary.BigEndian.Uint64(l.Extensions[1:]), true
}

// submit passes a placeholder for b to raft. Raft accepts it when its main loop has written the previous entry. Until
// then, more requests can join b.
func (p *proposer) submit(b *batch) {
	b.future = p.raft.ApplyLog(placeholder(b.number), 0)
	p.batches <- b
}

// fill replaces a placeholder with the encoded requests of its batch. It first adds requests from the queue to the
// batch. Any other entry stays unchanged. fill returns the batch if some of its requests wait only for the local disk,
// and otherwise nil. Only raft's main loop calls fill, immediately before the log writes the entry.
func (p *proposer) fill(l *raft.Log) (*batch, error) {
	number, ok := batchNumber(l)
	if !ok {
		return nil, nil
	}
	p.mu.Lock()
	b := p.open[number]
	if b == nil { // the group is closing
		p.mu.Unlock()
		return nil, errClosing()
	}
	if p.filling == b { // only the newest entry takes requests; otherwise they would overtake earlier requests
		if p.paused == 0 {
			p.fillLocked(b)
		}
		p.filling = nil
	}
	early := b.early
	p.mu.Unlock()
	version := uint8(command.First)
	for _, one := range b.proposals {
		version = max(version, command.Needs(one.data))
	}
	data := make([]byte, 0, command.HeaderSize+b.size)
	data = command.AppendHeader(data, version, p.clock.leader(), len(b.proposals))
	for _, one := range b.proposals {
		data = append(data, one.data...)
	}
	timeline.MarkEntries(timeline.Encoded, l.Index, l.Index)
	p.obs.entry(len(b.proposals), len(data))
	l.Data, l.Extensions = data, p.logs.Owing(early)
	if early == 0 {
		return nil, nil
	}
	b.pos = raftlog.Position{Term: l.Term, Index: l.Index}
	return b, nil
}

// stored passes batches to the goroutine that runs acknowledge. The log has accepted the entries of these batches, but
// may not have written them to disk yet. Each batch must have requests that wait only for the local disk. Only raft's
// main loop calls stored.
func (p *proposer) stored(early []*batch) {
	if len(early) == 0 {
		return
	}
	p.mu.Lock()
	for _, b := range early {
		b.stored = true
	}
	p.stores = append(p.stores, early...)
	p.mu.Unlock()
	select {
	case p.store <- struct{}{}:
	default:
	}
}

// acknowledge answers the requests that wait only for the local disk, in the order of the log. It ends when all
// entries are finished.
func (p *proposer) acknowledge() {
	defer p.wg.Done()
	for {
		select {
		case <-p.store:
		case <-p.finished:
			return
		}
		p.mu.Lock()
		batches := p.stores
		p.stores = nil
		p.mu.Unlock()
		for _, b := range batches {
			p.answerDurable(b)
			p.written(b)
		}
	}
}

// answerDurable waits until the entry of b is on the local disk. It then answers the requests that wait only for this
// write. If the write has failed, answerDurable answers no request. All requests then get their answer when raft
// refuses or applies the entry.
func (p *proposer) answerDurable(b *batch) {
	if p.logs.WaitDurable(b.pos.Index) != nil {
		return
	}
	for _, one := range b.proposals {
		if one.ack == Durable {
			one.settle(outcome{answer: Answer{Position: b.pos}})
		}
	}
}

// written records that no request of the entry waits for the local disk any more.
func (p *proposer) written(b *batch) {
	p.mu.Lock()
	p.unsynced -= b.early
	b.early = 0
	p.mu.Unlock()
	p.rouse()
}

// await finishes the entries in the order of the log.
func (p *proposer) await() {
	defer p.wg.Done()
	defer close(p.finished)
	for b := range p.batches {
		p.finish(b)
		p.mu.Lock()
		delete(p.open, b.number)
		p.inFlight -= len(b.proposals)
		p.mu.Unlock()
		<-p.slots
		p.written(b)
	}
}

// finish waits until raft has applied or refused the entry, and answers its requests.
func (p *proposer) finish(b *batch) {
	err := b.future.Error()
	p.mu.Lock()
	stored := b.stored
	p.mu.Unlock()
	if stored {
		// Raft may have refused the entry after the log accepted it. Its early requests are durable in any case.
		p.answerDurable(b)
	}
	if err != nil {
		b.settle(outcome{err: applyError(err)})
		return
	}
	done, ok := b.future.Response().(*snapshot.Result)
	if !ok || done.Err != nil || len(done.Results) != len(b.proposals) {
		err := &fault.Error{Code: fault.Indeterminate, Op: "group.Propose",
			Msg: "the entry was committed but could not be applied here"}
		if ok {
			err.Err = done.Err
		}
		b.settle(outcome{err: err})
		return
	}
	pos := raftlog.Position{Index: b.future.Index(), Term: done.Term}
	timeline.MarkEntries(timeline.Settled, pos.Index, pos.Index)
	for i, one := range b.proposals {
		one.settle(outcome{answer: Answer{Position: pos, Result: done.Results[i]}})
	}
}
