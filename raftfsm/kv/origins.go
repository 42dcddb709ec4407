package kv

import (
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
)

// Durations in milliseconds of cluster time. They are part of the format.
const (
	originLife    = 24 * 60 * 60 * 1000 // an origin not seen for this long is removed
	originRefresh = 60 * 60 * 1000      // minimum time between two updates of origin.lastSeen
)

// origins contains the registered sources of requests, called origins, and the stored results of their requests. Both
// are kept in memory. They are read from the database only when the machine is opened.
type origins struct {
	byNumber map[uint64]*origin
	byName   map[string]*origin
	touched  []*origin // origins of the requests in the entry being applied
	earliest uint64    // result of due, unless moved is true
	moved    bool      // earliest must be computed again
}

// origin is one registered source of requests. It stores the results of its requests with sequence numbers above the
// low-water mark. Requests at or below the mark are refused, because their results are no longer stored.
type origin struct {
	number   uint64
	name     string
	mark     uint64
	lastSeen uint64                // cluster time of its last request, or up to originRefresh earlier
	results  map[uint64]remembered // by sequence number
	entries  []decided             // the records of results in the database, oldest first
	pending  pending
}

// pending records what settle has to write for an origin because of the current log entry.
type pending struct {
	entry  uint64   // index of the entry, 0 = not touched
	seqs   []uint64 // sequence numbers of the requests that this entry has decided
	mark   uint64   // the mark that is in the database
	record bool     // the origin's record changed
	gone   bool     // the origin was dropped
}

// remembered is the stored result of one request, encoded by appendResult.
type remembered struct {
	index uint64 // index of the entry that has decided or refused the request
	data  []byte
}

// decided describes one record of the results table. The record contains the results of one log entry for one origin.
type decided struct {
	index uint64 // index of the entry
	last  uint64 // greatest sequence number in it
}

func newOrigins() *origins {
	return &origins{byNumber: make(map[uint64]*origin), byName: make(map[string]*origin), moved: true}
}

func (t *origins) add(o *origin) {
	t.byNumber[o.number], t.byName[o.name] = o, o
	t.moved = true
}

// due returns the earliest cluster time at which an origin has been idle for too long, or the constant never if there
// are no origins.
func (t *origins) due() uint64 {
	if t.moved {
		t.earliest, t.moved = never, false
		for _, o := range t.byNumber {
			t.earliest = min(t.earliest, o.due())
		}
	}
	return t.earliest
}

func (o *origin) due() uint64 { return later(o.lastSeen, originLife) }

// recall looks up the result of an earlier request with the same id. known is true in these cases:
//
//   - A result is stored. recall sets res to it.
//   - The origin is unknown, or the sequence number of the id is at or below the origin's low-water mark. recall sets
//     res to the outcome Stale.
//
// If known is false, the caller must apply the request. It must also store the result in o, unless o is nil.
func (w *writer) recall(index uint64, id command.RequestID, res *Result) (o *origin, known bool, err error) {
	if id.Origin == 0 {
		return nil, false, nil
	}
	o = w.origins.byNumber[id.Origin]
	if o == nil {
		*res = Result{Outcome: Stale, Index: index}
		return nil, true, nil
	}
	w.touch(o, index)
	o.raise(id.Done)
	if id.Seq > w.bounds.window {
		o.raise(id.Seq - w.bounds.window)
	}
	if id.Seq <= o.mark {
		*res = Result{Outcome: Stale, Index: index}
		return o, true, nil
	}
	seen, ok := o.results[id.Seq]
	if ok {
		*res, err = parseResult(seen.data, seen.index)
		res.Replayed = true
	}
	return o, ok, err
}

func (w *writer) touch(o *origin, index uint64) {
	if o.pending.entry != index {
		o.pending.entry = index
		w.origins.touched = append(w.origins.touched, o)
	}
	if w.meta.clock-o.lastSeen >= originRefresh {
		o.lastSeen, o.pending.record, w.origins.moved = w.meta.clock, true, true
	}
}

// raise moves the low-water mark up, and forgets the results at or below its new value.
func (o *origin) raise(mark uint64) {
	if mark <= o.mark {
		return
	}
	if mark-o.mark <= uint64(len(o.results)) {
		for seq := o.mark + 1; seq <= mark; seq++ {
			delete(o.results, seq)
		}
	} else {
		for seq := range o.results {
			if seq <= mark {
				delete(o.results, seq)
			}
		}
	}
	o.mark = mark
}

func (o *origin) remember(seq uint64, r remembered) {
	o.results[seq] = r
	o.pending.seqs = append(o.pending.seqs, seq)
}

// settle writes the results of the log entry at the given index. It also deletes all results at or below the low-water
// marks of their origins. It copies the new results, because they share memory with the log entry.
func (w *writer) settle(index uint64) {
	for _, o := range w.origins.touched {
		if !o.pending.gone {
			w.settleOrigin(o, index)
		}
	}
	w.origins.touched = w.origins.touched[:0]
}

func (w *writer) settleOrigin(o *origin, index uint64) {
	p := &o.pending
	p.seqs = slices.DeleteFunc(p.seqs, func(seq uint64) bool { return seq <= o.mark })
	if len(p.seqs) > 0 {
		w.key = appendRememberedKey(w.key[:0], o.number, index)
		w.txn.set(w.key, o.seal(index))
		p.mark = o.mark
	}
	if p.record || p.mark != o.mark {
		w.putOrigin(o)
	}
	passed := 0
	for passed < len(o.entries) && o.entries[passed].last <= o.mark {
		w.key = appendRememberedKey(w.key[:0], o.number, o.entries[passed].index)
		w.txn.delete(w.key)
		passed++
	}
	o.entries = slices.Delete(o.entries, 0, passed)
	*p = pending{seqs: p.seqs[:0], mark: o.mark}
}

// seal returns the database record of the results that one entry added for the origin:
//
//	format(1) mark(8) (sequence number, result with its length)*
//
// seal also replaces the results in o with slices of this record, which does not share memory with the log entry.
func (o *origin) seal(index uint64) []byte {
	size := 1 + 8
	for _, seq := range o.pending.seqs {
		n := len(o.results[seq].data)
		size += uvarintSize(seq) + uvarintSize(uint64(n)) + n //nolint:gosec // a length
	}
	rec := binary.BigEndian.AppendUint64(append(make([]byte, 0, size), originFormat), o.mark)
	last := uint64(0)
	for _, seq := range o.pending.seqs {
		data := o.results[seq].data
		rec = binary.AppendUvarint(binary.AppendUvarint(rec, seq), uint64(len(data)))
		from := len(rec)
		rec = append(rec, data...)
		o.results[seq] = remembered{index: index, data: rec[from:len(rec):len(rec)]}
		last = max(last, seq)
	}
	o.entries = append(o.entries, decided{index: index, last: last})
	return rec
}

// originFormat is the first byte of the records of origins and of their results.
const originFormat = 1

// putOrigin writes the record of an origin: format(1) mark(8) last seen(8) name.
func (w *writer) putOrigin(o *origin) {
	rec := append(make([]byte, 0, 17+len(o.name)), originFormat)
	rec = binary.BigEndian.AppendUint64(rec, o.mark)
	rec = binary.BigEndian.AppendUint64(rec, o.lastSeen)
	w.key = appendNumberKey(w.key[:0], tableOrigin, o.number)
	w.txn.set(w.key, append(rec, o.name...))
}

// register adds a new origin and returns its number. It replaces an origin with the same name. If the machine already
// has the maximum number of origins, register drops the origin that has been idle for the longest time.
func (w *writer) register(name string) uint64 {
	if old := w.origins.byName[name]; old != nil {
		w.drop(old)
	}
	if len(w.origins.byNumber) >= w.bounds.origins {
		w.drop(w.origins.oldest(1)[0])
	}
	w.meta.revision++
	o := &origin{
		number: w.meta.revision, name: string([]byte(name)), // name aliases the entry
		lastSeen: w.meta.clock, results: make(map[uint64]remembered),
	}
	w.origins.add(o)
	w.putOrigin(o)
	return o.number
}

// drop removes an origin and all its stored results.
func (w *writer) drop(o *origin) {
	w.key = appendNumberKey(w.key[:0], tableOrigin, o.number)
	w.txn.delete(w.key)
	for _, e := range o.entries {
		w.key = appendRememberedKey(w.key[:0], o.number, e.index)
		w.txn.delete(w.key)
	}
	o.pending.gone = true
	delete(w.origins.byNumber, o.number)
	delete(w.origins.byName, o.name)
	w.origins.moved = true
}

// oldest returns up to n origins, longest unseen first.
func (t *origins) oldest(n int) []*origin {
	all := make([]*origin, 0, len(t.byNumber))
	for _, o := range t.byNumber {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *origin) int {
		if a.lastSeen != b.lastSeen {
			return compare(a.lastSeen, b.lastSeen)
		}
		return compare(a.number, b.number)
	})
	return all[:min(n, len(all))]
}

var errOrigin error = formError("origin record of an unknown form")

// load reads the origins and their results.
func (t *origins) load(db *pebble.DB) error {
	if err := scan(db, tableOrigin, t.loadOrigin); err != nil {
		return err
	}
	if err := scan(db, tableRemembered, t.loadResults); err != nil {
		return err
	}
	for _, o := range t.byNumber {
		for seq := range o.results {
			if seq <= o.mark {
				delete(o.results, seq)
			}
		}
		o.pending.mark = o.mark
	}
	return nil
}

func (t *origins) loadOrigin(key, value []byte) error {
	number, ok := parseNumberKey(key)
	if !ok || len(value) < 17 || value[0] != originFormat {
		return errOrigin
	}
	t.add(&origin{
		number: number, name: string(value[17:]), results: make(map[uint64]remembered),
		mark: binary.BigEndian.Uint64(value[1:]), lastSeen: binary.BigEndian.Uint64(value[9:]),
	})
	return nil
}

// loadResults reads what seal wrote.
func (t *origins) loadResults(key, value []byte) error {
	number, index, ok := parseRememberedKey(key)
	o := t.byNumber[number]
	if !ok || o == nil || len(value) < 9 || value[0] != originFormat {
		return errOrigin
	}
	o.mark = max(o.mark, binary.BigEndian.Uint64(value[1:]))
	n := lenprefix.Reader{Rest: slices.Clone(value[9:])}
	last := uint64(0)
	for len(n.Rest) > 0 {
		seq := n.Uvarint()
		o.results[seq] = remembered{index: index, data: n.Bytes()}
		last = max(last, seq)
	}
	if n.Bad {
		return errOrigin
	}
	o.entries = append(o.entries, decided{index: index, last: last})
	return nil
}

// scan calls f for every key of a table, in order.
func scan(db *pebble.DB, table byte, f func(key, value []byte) error) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		return err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), value); err != nil {
			return err
		}
	}
	return it.Error()
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
