package kv

import (
	"maps"
	"slices"
	"strings"

	contract "github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/command"
)

// A history is the list of changes of all keys with one prefix in one store. Watchers read from it what has happened
// after a revision. The command KindWatch switches a history on, or extends it. The history is switched off when
// command.WatchLife of cluster time has passed after its last KindWatch. Histories are part of the
// replicated state: snapshots, restarts and comparisons of replicas include them.
//
// Invariants:
//
//   - A change is written to its history in the same Pebble batch as to the record. So the history of a replica has a
//     change if and only if the replica has applied it.
//   - While a history is on, every change of a visible or expired record of its prefix is in the history exactly once,
//     with a revision of its own. That includes removals and expiries, which take a revision only in such a prefix.
//   - The history has every change with a revision above floor, and none at or below floor. Trimming raises floor, and
//     depends on the entries alone.
//   - The changes of one request are in the order of its operations. The last one is marked.
//   - A restore ends every history. The records that it writes are not changes.
//
// Changes are trimmed in segments. A segment is closed at the end of a request, once it has a 64th of the bytes that
// the history keeps, or spans a 64th of the time.

// segments is how many parts of about equal size a full history has.
const segments = 64

// history is the state of the history of one prefix. Its database record contains the newest segment and the fields
// from id to until. Closed segments have records of their own.
type history struct {
	key   rowKey // store and prefix
	id    uint64 // the revision at which it was switched on; part of the keys of its changes
	floor uint64 // the changes above this revision are kept
	age   uint64 // older changes are trimmed; milliseconds of cluster time
	bytes uint64 // maximum of size
	until uint64 // cluster time at which it is switched off

	size    uint64    // bytes of all changes
	closed  []segment // oldest first
	open    segment   // the newest one; its first revision is 0 while it is empty
	touched bool      // the current Apply has changed it
	grown   bool      // the current entry has added changes
	marked  bool      // used by flushChanges
}

// segment is a sequence of changes.
type segment struct {
	first, last    uint64 // revisions
	size           uint64 // bytes of keys and values in the database
	oldest, newest uint64 // cluster time of the first and of the last change
	hash           setHash
}

// histories are the histories of a machine. The zero value has none.
type histories struct {
	all     map[rowKey]*history
	touched []*history      // changed in this Apply
	grown   []*history      // with changes of this entry
	pending []pendingChange // changes of the request that is being decided
	gone    []rowKey        // switched off in this Apply
	due     uint64          // lower bound of nextDue; not valid without histories
	size    uint64          // bytes of all changes
}

// pendingChange is a change by the request that is being applied. Its strings share memory with the log entry.
type pendingChange struct {
	history  *history
	revision uint64
	key      string
	expireAt uint64
	op       *command.Op // of a set; nil for a removal
	expired  bool
}

// historyOf returns the history to which changes of a key belong, or nil.
func (w *writer) historyOf(k rowKey) *history {
	if len(w.histories.all) == 0 {
		return nil
	}
	return w.histories.all[rowKey{k.store, contract.PrefixOf(k.key)}]
}

// noteSet adds the set operation o to the pending changes, if its key belongs to a history. The change gets the
// newest revision.
func (w *writer) noteSet(k rowKey, expireAt uint64, o *command.Op) {
	if h := w.historyOf(k); h != nil {
		w.histories.pending = append(w.histories.pending,
			pendingChange{history: h, revision: w.meta.revision, key: k.key, expireAt: expireAt, op: o})
	}
}

// noteRemoval adds a removal to the pending changes, if its key belongs to a history. The removal then takes a new
// revision.
func (w *writer) noteRemoval(k rowKey, old *row) {
	if h := w.historyOf(k); h != nil {
		w.meta.revision++
		w.histories.pending = append(w.histories.pending,
			pendingChange{history: h, revision: w.meta.revision, key: k.key, expired: !old.live(w.meta.clock)})
	}
}

// flushChanges writes the pending changes of one request to their histories. If grouped is true, only the request's
// final change in each history gets the flag Last, so that readers get all changes of the request together. Otherwise
// every change gets the flag.
func (w *writer) flushChanges(grouped bool) {
	changes := w.histories.pending
	for i := len(changes) - 1; i >= 0; i-- {
		p := &changes[i]
		last := !p.history.marked || !grouped
		p.history.marked = true
		if last {
			p.revision |= lastOfRequest
		}
	}
	for i := range changes {
		changes[i].history.marked = false
		w.writeChange(&changes[i])
		changes[i] = pendingChange{}
	}
	w.histories.pending = changes[:0]
}

// lastOfRequest is a flag bit in pendingChange.revision. flushChanges sets it for the last change of a request.
const lastOfRequest = 1 << 63

func (w *writer) writeChange(p *pendingChange) {
	h, last := p.history, p.revision&lastOfRequest != 0
	p.revision &^= lastOfRequest
	size := changeSize(p)
	put := w.txn.batch.SetDeferred(changeKeySize, size)
	appendChangeKey(put.Key[:0], h.id, p.revision)
	appendChange(put.Value[:0], p, last)
	h.add(p.revision, uint64(changeKeySize+size), w.meta.clock, w.share(put.Key[1:], put.Value)) //nolint:gosec // small
	w.txn.err = keep(w.txn.err, put.Finish())
	w.histories.size += uint64(changeKeySize + size) //nolint:gosec // not negative
	w.histories.due = min(w.histories.due, later(h.oldest().newest, h.age))
	w.touchHistory(h)
	if !h.grown {
		h.grown = true
		w.histories.grown = append(w.histories.grown, h)
	}
	if last {
		w.closeSegment(h)
	}
}

func (h *history) add(revision, size, clock uint64, hash setHash) {
	s := &h.open
	if s.first == 0 {
		s.first, s.oldest = revision, clock
	}
	s.last, s.newest = revision, clock
	s.size += size
	h.size += size
	s.hash.add(hash)
}

// oldest returns the segment that is trimmed next.
func (h *history) oldest() *segment {
	if len(h.closed) > 0 {
		return &h.closed[0]
	}
	return &h.open
}

// closeSegment closes the open segment of h if that segment is large or old enough. The next change begins a new
// segment.
func (w *writer) closeSegment(h *history) {
	s := &h.open
	if s.first == 0 || s.size < h.bytes/segments && w.meta.clock-s.oldest < h.age/segments {
		return
	}
	w.txn.set(appendSegmentKey(nil, h.id, s.first), s.append(nil))
	h.closed = append(h.closed, *s)
	*s = segment{}
}

func (w *writer) touchHistory(h *history) {
	if !h.touched {
		h.touched = true
		w.histories.touched = append(w.histories.touched, h)
	}
}

// settleHistories trims the histories to which the current log entry has added changes. It does not trim a history that
// only earlier entries of the same Apply have changed. Otherwise the state would depend on how entries are grouped into
// calls of Apply.
func (w *writer) settleHistories() {
	for _, h := range w.histories.grown {
		h.grown = false
		if w.histories.all[h.key] == h {
			w.trim(h)
		}
	}
	w.histories.grown = w.histories.grown[:0]
}

// trim removes old changes from h, in whole segments. While h exceeds its size limit, trim drops the oldest segment,
// but it keeps the newest, so that even a request larger than the limit can be read. It then drops all segments that
// are too old, including the newest.
func (w *writer) trim(h *history) {
	for len(h.closed) > 0 && h.size > h.bytes && (len(h.closed) > 1 || h.open.first != 0) {
		w.dropSegment(h)
	}
	for h.oldest().first != 0 && later(h.oldest().newest, h.age) <= w.meta.clock {
		w.dropSegment(h)
	}
}

func (w *writer) dropSegment(h *history) {
	s := *h.oldest()
	w.txn.deleteRange(appendChangeKey(nil, h.id, s.first), appendChangeKey(nil, h.id, s.last+1))
	if len(h.closed) > 0 {
		w.txn.delete(appendSegmentKey(nil, h.id, s.first))
		h.closed = slices.Delete(h.closed, 0, 1)
	} else {
		h.open = segment{}
	}
	h.floor, h.size = s.last, h.size-s.size
	w.histories.size -= s.size
	w.touchHistory(h)
}

// watch creates the history of a prefix, or keeps an existing one for another command.WatchLife. It stores the floor of
// the history in res. The history has every change with a revision above its floor.
func (w *writer) watch(c *command.Watch, res *Result) {
	k := rowKey{c.Store, c.Prefix}
	h := w.histories.all[k]
	if h != nil && h.until <= w.meta.clock {
		w.switchOff(h)
		h = nil
	}
	if h == nil {
		k = rowKey{strings.Clone(c.Store), strings.Clone(c.Prefix)}
		w.meta.revision++
		h = &history{key: k, id: w.meta.revision, floor: w.meta.revision}
		if w.histories.all == nil {
			w.histories.all = map[rowKey]*history{}
		}
		w.histories.all[k] = h
	}
	h.age, h.bytes, h.until = c.Age, c.Bytes, later(w.meta.clock, command.WatchLife)
	w.touchHistory(h)
	w.trim(h)
	w.histories.due = w.histories.nextDue()
	res.Revisions = w.numbers(1)
	res.Revisions[0] = h.floor
}

// switchOff removes a history.
func (w *writer) switchOff(h *history) {
	w.txn.deleteRange(appendNumberKey(nil, tableChange, h.id), appendNumberKey(nil, tableChange, h.id+1))
	w.txn.deleteRange(appendNumberKey(nil, tableSegment, h.id), appendNumberKey(nil, tableSegment, h.id+1))
	w.txn.delete(appendWatchedKey(nil, h.key))
	w.histories.size -= h.size
	delete(w.histories.all, h.key)
	w.histories.gone = append(w.histories.gone, h.key)
}

// dropHistories removes all histories.
func (w *writer) dropHistories() {
	for _, h := range w.histories.all {
		w.switchOff(h)
	}
}

// expireHistories removes old changes from all histories. It also removes the histories that were not extended in time,
// and returns their number. The result hasMore is always false, because one call removes everything that is due.
func (w *writer) expireHistories(int) (removed int, hasMore bool, err error) {
	w.flushChanges(false) // so that switching a history off also deletes these changes
	for _, k := range w.histories.keys() {
		h := w.histories.all[k]
		if h.until <= w.meta.clock {
			w.switchOff(h)
			removed++
			continue
		}
		w.trim(h)
	}
	w.histories.due = w.histories.nextDue()
	return removed, false, nil
}

// keys returns the prefixes of all histories in a fixed order.
func (hs *histories) keys() []rowKey {
	if len(hs.all) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(hs.all), func(a, b rowKey) int {
		if c := strings.Compare(a.store, b.store); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
}

// nextDue returns the earliest cluster time at which a history must be trimmed or removed, or the constant never if
// there are no histories.
func (hs *histories) nextDue() uint64 {
	due := never
	for _, h := range hs.all {
		due = min(due, h.until)
		if s := h.oldest(); s.first != 0 {
			due = min(due, later(s.newest, h.age))
		}
	}
	return due
}

// nextDueHint returns a lower bound of nextDue, without looking at every history.
func (hs *histories) nextDueHint() uint64 {
	if len(hs.all) == 0 {
		return never
	}
	return hs.due
}

// begin prepares for the changes of an Apply.
func (hs *histories) begin() {
	for _, h := range hs.touched {
		h.touched = false
	}
	hs.touched, hs.pending, hs.gone = hs.touched[:0], hs.pending[:0], hs.gone[:0]
}

// saveHistories adds the records of the changed histories to the batch.
func (w *writer) saveHistories() {
	for _, h := range w.histories.touched {
		if w.histories.all[h.key] == h {
			w.txn.set(appendWatchedKey(nil, h.key), h.append(nil))
		}
	}
}
