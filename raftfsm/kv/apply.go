package kv

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// Apply applies committed entries in order and returns one result per entry. It skips entries that are already applied.
// The changes are durable after the next Flush. Only one goroutine at a time may call Apply.
//
// Apply writes all changes and the applied index to Pebble in one batch, except that a step of a restore has batches of
// its own.
//
// If an entry cannot be decoded, Apply halts the machine and calls Options.Fatal. This entry and all later ones get an
// error, also in later calls. If storage fails, the machine is broken, and every entry that was not skipped gets an
// error.
func (m *Machine) Apply(entries []Entry) []EntryResult {
	out := make([]EntryResult, len(entries))
	if !m.gate.enter() {
		refuse(out, errClosed("kv.Apply"))
		return out
	}
	defer m.gate.leave()
	if err := m.health.writable(); err != nil {
		refuse(out, err)
		return out
	}
	if err := m.apply(entries, out); err != nil {
		failure := errStorage("kv.Apply", "applying stopped, storage failed", err)
		m.health.fail(failure)
		refuse(out, failure)
	}
	return out
}

// refuse sets err as the result of every entry that was not skipped.
func refuse(out []EntryResult, err error) {
	for i := range out {
		if !out[i].Skipped {
			out[i] = EntryResult{Err: err}
		}
	}
}

// apply applies the entries and sets their results in out. At an entry that cannot be decoded, it halts the machine and
// refuses this entry and all later ones. The result err is set only if the storage fails.
func (m *Machine) apply(entries []Entry, out []EntryResult) (err error) {
	w := m.writer
	w.begin()
	defer func() { err = keep(err, w.end()) }()
	for i := range entries {
		e := &entries[i]
		if e.Index <= w.meta.applied {
			out[i].Skipped = true
			continue
		}
		batch, damage := m.decode(e)
		if damage != nil {
			m.health.halt(damage)
			refuse(out[i:], damage)
			break
		}
		alone := restores(&batch)
		if alone {
			if err := m.cut(); err != nil {
				return err
			}
		}
		if out[i].Results, err = w.entry(e, &batch); err != nil {
			return err
		}
		if alone {
			if err := m.cut(); err != nil {
				return err
			}
		}
	}
	if w.meta.applied == m.Applied() {
		return nil // no change is left to commit
	}
	return m.commit()
}

func (m *Machine) decode(e *Entry) (command.Batch, *fault.Error) {
	if len(e.Data) == 0 {
		return command.Batch{}, nil
	}
	b, err := command.DecodeUpTo(m.newest, e.Data)
	if err == nil {
		return b, nil
	}
	hint := "the log of this replica is damaged: remove its data so that it is copied from the others, or restore " +
		"a backup"
	if fault.Is(err, fault.Unimplemented) {
		hint = "run a version that understands it; nothing of it was applied"
	}
	return b, &fault.Error{
		Code: fault.CodeOf(err), Op: "kv.Apply", Err: &fault.Error{Code: fault.CodeOf(err), Msg: fault.Text(err)},
		Msg:  fmt.Sprintf("log entry %d of term %d cannot be applied", e.Index, e.Term),
		Hint: hint,
	}
}

// commit writes the changes of the current Apply to the database. It then publishes the new state, and wakes the calls
// and listeners that wait for it.
func (m *Machine) commit() error {
	if err := m.install(); err != nil {
		return err
	}
	m.publish()
	m.remember(m.writer.marks)
	m.writer.marks = m.writer.marks[:0]
	m.publishChanges()
	m.waiters.reached(m.writer.meta.applied)
	m.notify()
	return nil
}

// install writes the changes of the current Apply to the database in one batch. Before the write, it publishes the new
// cluster time and the new applied index. A reader that sees a change of the batch therefore also finds the time and
// the index that belong to it.
func (m *Machine) install() error {
	w := m.writer
	w.terms.save(&w.txn)
	w.saveHistories()
	w.txn.set(metaKey(), w.meta.append(nil))
	m.ahead.Store(w.meta.clock)
	m.visible.Store(w.meta.applied)
	replaced := w.meta.tables() != m.readEra().tables()
	if replaced {
		m.era.Add(1) // before the old set is deleted
	}
	m.reads.begin()
	if replaced {
		m.reads.clear()
	} else {
		m.uncache()
	}
	if err := w.txn.commit(); err != nil {
		return err
	}
	m.deletions.Add(w.txn.deletions)
	m.reads.end()
	w.rows.settle()
	return nil
}

// uncache removes from the cache of reads the keys that the current Apply changes.
func (m *Machine) uncache() {
	w := m.writer
	for k := range w.rows.known {
		w.key = appendDataKey(w.key[:0], w.meta.tables(), k.store, k.key)
		m.reads.remove(w.key)
	}
}

// writer has the state after the newest entry, including the changes that the current Apply has not written yet.
// Readers see this state only after Machine.publish.
type writer struct {
	meta      meta
	bounds    bounds
	dueFloor  uint64 // no item of the due index is below it
	origins   *origins
	terms     terms
	txn       txn
	rows      rows
	clients   clientOverlay
	histories histories
	unhashed  bool     // the set hashes are off, for a benchmark of their cost
	period    uint64   // see Options.MarkPeriod
	marks     []Mark   // of this Apply
	trace     []byte   // input of the rolling hash for the current entry
	slab      []uint64 // block of memory from which numbers takes slices
	key       []byte   // scratch buffer for keys
	locks     []string // keys of LockStore that this Apply has changed
	dues      []string // keys of DueStore that this Apply has written
	topics    []string // keys of TopicStore that this Apply has written
	restored  bool     // this Apply has committed a restore
}

// bounds limit how many results of requests the machine stores. A retry gets the stored result of the first attempt.
// The bounds are part of the data format, because all replicas must delete the same results at the same log entry.
// Tests use smaller bounds.
type bounds struct {
	window  uint64 // how far the newest sequence number of an origin may be above its low-water mark
	origins int    // registered origins
	clients uint64 // items in the queue of client results
	terms   int    // recorded terms
}

// The values of bounds that the data format prescribes.
const (
	maxOpenSeq       = 1 << 16
	maxOrigins       = 1 << 16
	maxClientResults = 1_000_000
)

// newWriter returns a writer. Its cache of rows takes about rowBytes bytes.
func newWriter(db *pebble.DB, last meta, rowBytes uint64) *writer {
	return &writer{
		rows:    rows{recent: recent{limit: int(rowBytes / 2)}}, //nolint:gosec // a part of a memtable
		meta:    last,
		bounds:  bounds{window: maxOpenSeq, origins: maxOrigins, clients: maxClientResults, terms: maxTerms},
		origins: newOrigins(),
		txn:     txn{db: db},
	}
}

func (w *writer) begin() {
	w.txn.begin()
	w.rows.begin()
	w.clients.begin()
	w.histories.begin()
}

func (w *writer) end() error {
	w.rows.end()
	w.clients.end()
	return w.txn.end()
}

// entry applies one log entry and returns the results of its requests. An entry without a command changes the applied
// index and term, but not the rolling hash. A replica that has installed a snapshot may lack such entries, and its hash
// must still equal that of the other replicas.
func (w *writer) entry(e *Entry, b *command.Batch) ([]Result, error) {
	before := w.meta.clock
	w.meta.clock = max(w.meta.clock, b.Stamp)
	w.trace = append(w.trace[:0], make([]byte, traceHead)...)
	results := make([]Result, len(b.Requests))
	for i := range b.Requests {
		if r := &b.Requests[i]; r.Kind == command.KindRestore && len(b.Requests) > 1 {
			results[i] = Result{Outcome: Rejected, Index: e.Index} // a leader never proposes such a batch
			continue
		}
		if err := w.request(e.Index, &b.Requests[i], &results[i]); err != nil {
			return nil, err
		}
	}
	w.settleHistories()
	w.settle(e.Index)
	w.meta.applied, w.meta.term = e.Index, e.Term
	if len(e.Data) > 0 {
		w.chain(e)
		w.mark(before)
		w.terms.note(&w.txn, e.Index, e.Term, w.bounds.terms)
	}
	return results, nil
}

// traceHead is the size in bytes of the first part of writer.trace: the previous hash, the index of the entry, and the
// hash of the entry. The results follow after it.
const traceHead = 3 * 8

// chain adds one entry and its results to the rolling hash.
func (w *writer) chain(e *Entry) {
	binary.BigEndian.PutUint64(w.trace, w.meta.hash)
	binary.BigEndian.PutUint64(w.trace[8:], e.Index)
	binary.BigEndian.PutUint64(w.trace[16:], xxhash.Sum64(e.Data))
	w.meta.hash = xxhash.Sum64(w.trace)
}

// request applies or refuses one request, and stores the result in res. If an earlier entry has already decided the
// request, it is not applied again, and res gets the stored result.
func (w *writer) request(index uint64, r *command.Request, res *Result) error {
	o, known, err := w.recall(index, r.ID, res)
	if err != nil {
		return err
	}
	if !known {
		res.Index = index
		if err := w.decide(r, res); err != nil {
			return err
		}
		w.flushChanges(r.Kind != command.KindExpire)
	}
	from := len(w.trace)
	w.trace = appendResult(w.trace, res, index)
	if o != nil && !known {
		o.remember(r.ID.Seq, remembered{index: index, data: w.trace[from:len(w.trace):len(w.trace)]})
	}
	w.trace = append(w.trace, flag(res.Replayed))
	return nil
}

// decide applies or refuses a request, and sets res to its result. The request must not have a stored result for its
// RequestID.
func (w *writer) decide(r *command.Request, res *Result) error {
	res.Outcome = Applied
	switch r.Kind {
	case command.KindWrite:
		return w.writeOnce(r, res)
	case command.KindRegister:
		res.Revisions = w.numbers(1)
		res.Revisions[0] = w.register(r.Name)
	case command.KindExpire:
		return w.expire(r.Limit, res)
	case command.KindRestore:
		return w.restore(r, res)
	case command.KindWatch:
		w.watch(r.Watch, res)
	case command.KindFormat:
		w.meta.level = max(w.meta.level, uint64(r.Limit))
	case command.KindTick: // the stamp has already moved the clock
	}
	return nil
}

// numbers returns a slice of n zeros for revisions. It cuts the slices from larger blocks, to save allocations.
func (w *writer) numbers(n int) []uint64 {
	if n > len(w.slab) {
		w.slab = make([]uint64, max(n, 256))
	}
	s := w.slab[:n:n]
	w.slab = w.slab[n:]
	return s
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// later returns t+d, or the largest time on overflow.
func later(t, d uint64) uint64 {
	if t > never-d {
		return never
	}
	return t + d
}
