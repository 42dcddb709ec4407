package raftlog

import (
	"sort"
	"sync"

	"github.com/hashicorp/raft"
)

const (
	tailCacheBytes = 32 << 20 // bytes of entries kept in memory, for followers and for the machine
	tailCacheCount = 4096
	tailMarkBytes  = 256 << 10 // bytes of entries between two marks; since and within are exact only at marks
)

// tail caches the newest entries of the log, up to a limit in bytes. It also records how many bytes were appended, and
// which entries raft does not pass to the state machine. It replaces raft's LogCache, which limits the number of
// entries, but not their size in bytes. It is safe for concurrent use.
type tail struct {
	mu     sync.Mutex
	first  uint64      // index of cached[0]
	cached []*raft.Log // contiguous
	bytes  int         // size of the entries in cached

	last  uint64   // newest entry added; 0 = none
	total uint64   // bytes appended since open
	marks []mark   // about one for each tailMarkBytes, ascending
	blind []uint64 // entries above the settled index that raft does not pass to the state machine; see visible
	confs []uint64 // entries with a configuration
	terms []mark   // first index of each term seen, ascending; the field total holds the term
}

// mark records the value of tail.total before the entry at index was appended.
type mark struct {
	index uint64
	total uint64
}

// EntrySize returns the size of an entry in memory, in bytes.
func EntrySize(l *raft.Log) int { return len(l.Data) + len(l.Extensions) + 64 }

// visible reports whether raft passes entries of type t to the state machine. It passes commands and configurations,
// but not no-ops and barriers.
func visible(t raft.LogType) bool { return t == raft.LogCommand || t == raft.LogConfiguration }

// add adds entries, whether or not they are durable yet. The new entries replace all existing entries from the index
// of the first new entry on.
func (t *tail) add(logs []*raft.Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cutLocked(logs[0].Index)
	for _, l := range logs {
		t.noteLocked(l)
		if len(t.cached) == 0 {
			t.first = l.Index
		}
		t.cached = append(t.cached, l)
		t.bytes += EntrySize(l)
	}
	t.shrinkLocked()
}

// note records an entry that was in the log when the log was opened. It does not cache the entry.
func (t *tail) note(l *raft.Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(l)
}

func (t *tail) noteLocked(l *raft.Log) {
	if t.last != 0 && l.Index != t.last+1 {
		// An installed snapshot has left a gap. The terms and types recorded for the entries below the gap must not
		// be used for indexes in the gap.
		t.terms, t.blind, t.confs, t.marks = nil, nil, nil, nil
	}
	if n := len(t.marks); n == 0 || t.total-t.marks[n-1].total >= tailMarkBytes {
		t.marks = append(t.marks, mark{index: l.Index, total: t.total})
	}
	t.total += uint64(EntrySize(l))
	t.last = l.Index
	if !visible(l.Type) {
		t.blind = append(t.blind, l.Index)
	}
	if l.Type == raft.LogConfiguration {
		t.confs = append(t.confs, l.Index)
	}
	if n := len(t.terms); n == 0 || t.terms[n-1].total != l.Term {
		t.terms = append(t.terms, mark{index: l.Index, total: l.Term})
	}
}

// termAt returns the term of the entry at the given index. The result known is false if the tail does not know that
// entry.
func (t *tail) termAt(index uint64) (term uint64, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := sort.Search(len(t.terms), func(i int) bool { return t.terms[i].index > index })
	if i == 0 || index > t.last {
		return 0, false
	}
	return t.terms[i-1].total, true
}

// configuration returns the index of the newest configuration in the log; 0 = none known.
func (t *tail) configuration() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.confs); n > 0 {
		return t.confs[n-1]
	}
	return 0
}

// shrinkLocked keeps the cache within its bounds, but never drops the newest entry.
func (t *tail) shrinkLocked() {
	drop := 0
	for len(t.cached)-drop > 1 && (t.bytes > tailCacheBytes || len(t.cached)-drop > tailCacheCount) {
		t.bytes -= EntrySize(t.cached[drop])
		t.cached[drop] = nil
		drop++
	}
	t.cached = t.cached[drop:]
	t.first += uint64(drop)
}

// get returns the entry at the given index, or nil if it is not cached.
func (t *tail) get(index uint64) *raft.Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index < t.first || index-t.first >= uint64(len(t.cached)) {
		return nil
	}
	return t.cached[index-t.first]
}

// cut removes the entries from the given index on, which were replaced or truncated.
func (t *tail) cut(index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cutLocked(index)
}

func (t *tail) cutLocked(index uint64) {
	if n := len(t.cached); n > 0 && index != t.first+uint64(n) {
		keep := 0
		if index > t.first && index < t.first+uint64(n) {
			keep = int(index - t.first)
		}
		for _, l := range t.cached[keep:] {
			t.bytes -= EntrySize(l)
		}
		clear(t.cached[keep:])
		t.cached = t.cached[:keep]
	}
	n := sort.Search(len(t.blind), func(i int) bool { return t.blind[i] >= index })
	t.blind = t.blind[:n]
	n = sort.Search(len(t.confs), func(i int) bool { return t.confs[i] >= index })
	t.confs = t.confs[:n]
	t.terms = below(t.terms, index)
	t.marks = below(t.marks, index)
	t.last = min(t.last, max(index, 1)-1)
}

// below returns the marks before the given index.
func below(marks []mark, index uint64) []mark {
	return marks[:sort.Search(len(marks), func(i int) bool { return marks[i].index >= index })]
}

// forget drops the cached entries up to the given index, after the log was compacted up to there. It also drops the
// marks that are not needed any more. It keeps what is recorded about the terms and types of the dropped entries.
func (t *tail) forget(index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.cached) > 0 && t.first <= index {
		t.bytes -= EntrySize(t.cached[0])
		t.cached[0] = nil
		t.cached = t.cached[1:]
		t.first++
	}
	n := sort.Search(len(t.marks), func(i int) bool { return t.marks[i].index > index })
	if n > 0 {
		t.marks = append(t.marks[:0], t.marks[n-1:]...)
	}
}

// settle records that the state machine has applied all entries up to the given index. The tail then forgets which of
// these entries raft does not pass to the state machine.
func (t *tail) settle(index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := sort.Search(len(t.blind), func(i int) bool { return t.blind[i] > index })
	t.blind = append(t.blind[:0], t.blind[n:]...)
}

// lastVisible returns the index of the newest entry from floor+1 to index that raft passes to the state machine. It
// returns 0 if there is no such entry.
func (t *tail) lastVisible(index, floor uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := sort.Search(len(t.blind), func(i int) bool { return t.blind[i] > index }) - 1
	for ; index > floor && i >= 0 && t.blind[i] == index; i-- {
		index--
	}
	if index <= floor {
		return 0
	}
	return index
}

// since returns how many bytes were appended to the log, starting with the entry at the given index. The result is
// exact only if t.marks has a mark for this index.
func (t *tail) since(index uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := sort.Search(len(t.marks), func(i int) bool { return t.marks[i].index > index })
	if i == 0 {
		return t.total
	}
	return t.total - t.marks[i-1].total
}

// within returns how many of the newest entries fit into limit bytes. The parameter last is the index of the last
// entry. If all recorded entries fit, within returns last.
func (t *tail) within(last uint64, limit uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.marks) - 1; i >= 0; i-- {
		if t.total-t.marks[i].total > limit {
			if i+1 < len(t.marks) {
				return last - t.marks[i+1].index + 1
			}
			return 0
		}
	}
	return last
}
