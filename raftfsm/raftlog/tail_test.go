package raftlog

import (
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

func command1(index, term uint64, size int) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: make([]byte, size)}
}

func run(from, to, term uint64, size int) []*raft.Log {
	var out []*raft.Log
	for i := from; i <= to; i++ {
		out = append(out, command1(i, term, size))
	}
	return out
}

func TestTail_KeepsNewestEntriesWithinBounds(t *testing.T) {
	for name, c := range map[string]struct {
		n, size, kept int
	}{
		"by count":               {n: tailCacheCount + 500, size: 10, kept: tailCacheCount},
		"by bytes":               {n: 100, size: 1 << 20, kept: 31},
		"always the newest":      {n: 3, size: tailCacheBytes + 1, kept: 1},
		"everything while small": {n: 10, size: 10, kept: 10},
	} {
		t.Run(name, func(t *testing.T) {
			var tl tail
			data := make([]byte, c.size)
			for i := 1; i <= c.n; i++ {
				tl.add([]*raft.Log{{Index: uint64(i), Term: 1, Type: raft.LogCommand, Data: data}})
			}
			kept := 0
			for i := 1; i <= c.n; i++ {
				switch l := tl.get(uint64(i)); {
				case l == nil && kept > 0:
					t.Fatalf("entry %d is missing above a cached one", i)
				case l != nil && l.Index != uint64(i):
					t.Fatalf("requested entry %d, got %d", i, l.Index)
				case l != nil:
					kept++
				}
			}
			if kept != c.kept {
				t.Errorf("%d entries are kept, want %d", kept, c.kept)
			}
			if want := kept * (c.size + 64); tl.bytes != want {
				t.Errorf("counts %d bytes, has %d", tl.bytes, want)
			}
		})
	}
}

func TestTail_ForgetsReplacedSuffix(t *testing.T) {
	var tl tail
	tl.add(run(1, 10, 1, 100))
	tl.add([]*raft.Log{{Index: 11, Term: 2, Type: raft.LogNoop}, command1(12, 2, 100),
		{Index: 13, Term: 2, Type: raft.LogNoop}})
	tl.cut(9)
	for i := uint64(9); i <= 13; i++ {
		if tl.get(i) != nil {
			t.Errorf("entry %d is still there", i)
		}
	}
	if term, known := tl.termAt(8); !known || term != 1 {
		t.Errorf("entry 8 has term %d (%v)", term, known)
	}
	tl.add([]*raft.Log{command1(9, 3, 50), command1(10, 3, 50), command1(11, 3, 50)})
	for index, want := range map[uint64]uint64{1: 1, 8: 1, 9: 3, 11: 3} {
		if term, known := tl.termAt(index); !known || term != want {
			t.Errorf("entry %d has term %d (%v), want %d", index, term, known, want)
		}
	}
	if got := tl.lastVisible(11, 0); got != 11 {
		t.Errorf("a no-op that was replaced by a command is still skipped: %d", got)
	}
	if l := tl.get(9); l == nil || l.Term != 3 {
		t.Errorf("entry 9 is %v", l)
	}
}

func TestTail_CountsBytesAfterReplacedSuffix(t *testing.T) {
	var tl tail
	const size = 100 << 10
	for i := uint64(1); i <= 100; i++ {
		tl.add([]*raft.Log{command1(i, 1, size)})
	}
	tl.cut(11)
	for i := uint64(11); i <= 40; i++ {
		tl.add([]*raft.Log{command1(i, 2, size)})
	}
	entry := uint64(EntrySize(command1(1, 1, size)))
	for _, from := range []uint64{11, 20, 30, 36} {
		exact := (40 - from + 1) * entry
		if got := tl.since(from); got < exact || got > exact+tailMarkBytes+2*entry {
			t.Errorf("since(%d) = %d, %d bytes were appended from there on", from, got, exact)
		}
	}
	for _, entries := range []uint64{5, 10, 20} {
		if got := tl.within(40, entries*entry); got > entries || got+5 < entries {
			t.Errorf("within the bytes of %d entries, the result is %d", entries, got)
		}
	}
}

func TestTail_LastVisibleSkipsEntriesDownToFloor(t *testing.T) {
	blind := func(i uint64, typ raft.LogType) *raft.Log { return &raft.Log{Index: i, Term: 1, Type: typ} }
	var tl tail
	tl.add([]*raft.Log{
		blind(1, raft.LogConfiguration), blind(2, raft.LogNoop), command1(3, 1, 1), blind(4, raft.LogNoop),
		blind(5, raft.LogBarrier), command1(6, 1, 1), blind(7, raft.LogBarrier),
	})
	for _, c := range []struct{ index, Floor, want uint64 }{
		{1, 0, 1}, {2, 0, 1}, {3, 0, 3}, {4, 0, 3}, {5, 0, 3}, {6, 0, 6}, {7, 0, 6},
		{5, 3, 0}, {5, 4, 0}, {5, 5, 0}, {7, 5, 6}, {6, 6, 0}, {9, 0, 9},
	} {
		if got := tl.lastVisible(c.index, c.Floor); got != c.want {
			t.Errorf("lastVisible(%d, floor %d) = %d, want %d", c.index, c.Floor, got, c.want)
		}
	}
	tl.settle(5) // the machine has applied the entries up to 5
	if got := tl.lastVisible(7, 0); got != 6 {
		t.Errorf("after settling, lastVisible(7) = %d", got)
	}
}

func TestTail_TermOfUnseenEntryIsUnknown(t *testing.T) {
	var tl tail
	tl.add(run(100, 110, 4, 1))
	for _, index := range []uint64{99, 111} {
		if term, known := tl.termAt(index); known {
			t.Errorf("entry %d has term %d, want none", index, term)
		}
	}
	tl.cut(105)
	if term, known := tl.termAt(107); known {
		t.Errorf("a truncated entry has term %d", term)
	}
}

// naive is a simple model of tail, slow and without bounds.
type naive struct {
	first   uint64
	log     []*raft.Log
	before  []uint64 // bytes appended before each entry
	total   uint64
	settled uint64
}

func (n *naive) last() uint64 { return n.first + uint64(len(n.log)) - 1 }

func (n *naive) add(logs []*raft.Log) {
	n.cut(logs[0].Index)
	if len(n.log) == 0 {
		n.first = logs[0].Index
	}
	for _, l := range logs {
		n.log, n.before = append(n.log, l), append(n.before, n.total)
		n.total += uint64(EntrySize(l))
	}
}

func (n *naive) cut(index uint64) {
	keep := int(min(max(index, n.first)-n.first, uint64(len(n.log))))
	n.log, n.before = n.log[:keep], n.before[:keep]
}

func (n *naive) forget(index uint64) {
	for len(n.log) > 0 && n.first <= index {
		n.log, n.before, n.first = n.log[1:], n.before[1:], n.first+1
	}
}

func (n *naive) at(index uint64) *raft.Log {
	if index < n.first || index > n.last() {
		return nil
	}
	return n.log[index-n.first]
}

func (n *naive) lastVisible(index, floor uint64) uint64 {
	for ; index > floor; index-- {
		if l := n.at(index); l == nil || visible(l.Type) {
			return index
		}
	}
	return 0
}

func TestTail_MatchesModel(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 17))
		var tl tail
		m := naive{first: 1 + rnd.Uint64N(50)}
		next, term := m.first, uint64(1)
		for op := range 400 {
			switch r := rnd.IntN(10); {
			case r < 6:
				if rnd.IntN(12) == 0 && len(m.log) > 0 { // a new leader replaces a suffix
					term++
					next = m.last() - rnd.Uint64N(min(8, uint64(len(m.log)))) + 0
					next = max(next, m.settled+1, m.first)
					if next <= m.last() && rnd.IntN(2) == 0 {
						tl.cut(next)
						m.cut(next)
					}
				}
				logs := randomRun(rnd, next, term)
				tl.add(logs)
				m.add(logs)
				next = m.last() + 1
			case r < 8 && len(m.log) > 0:
				m.settled = max(m.settled, m.first+rnd.Uint64N(uint64(len(m.log))))
				tl.settle(m.settled)
			case len(m.log) > 2:
				upTo := min(m.first+rnd.Uint64N(uint64(len(m.log))-1), m.settled)
				tl.forget(upTo)
				m.forget(upTo)
			}
			compare(t, seed, op, &tl, &m, rnd)
		}
	}
}

func randomRun(rnd *rand.Rand, next, term uint64) []*raft.Log {
	types := []raft.LogType{raft.LogCommand, raft.LogCommand, raft.LogCommand, raft.LogNoop, raft.LogBarrier,
		raft.LogConfiguration}
	var logs []*raft.Log
	for range 1 + rnd.IntN(6) {
		logs = append(logs, &raft.Log{Index: next, Term: term, Type: types[rnd.IntN(len(types))],
			Data: make([]byte, rnd.IntN(60<<10))})
		next++
	}
	return logs
}

func compare(t *testing.T, seed uint64, op int, tl *tail, m *naive, rnd *rand.Rand) {
	t.Helper()
	if len(m.log) == 0 {
		return
	}
	const slack = tailMarkBytes + 60<<10 + 64
	for range 5 {
		index := m.first + rnd.Uint64N(uint64(len(m.log)))
		exact := m.at(index)
		if got := tl.get(index); got != nil && got != exact {
			t.Fatalf("seed %d op %d: get(%d) gave entry %d of term %d, want term %d", seed, op, index, got.Index,
				got.Term, exact.Term)
		}
		if got, known := tl.termAt(index); !known || got != exact.Term {
			t.Fatalf("seed %d op %d: termAt(%d) = %d (%v), want %d", seed, op, index, got, known, exact.Term)
		}
		bytes := m.total - m.before[index-m.first]
		if got := tl.since(index); got < bytes || got > bytes+slack {
			t.Fatalf("seed %d op %d: since(%d) = %d, want %d to %d more", seed, op, index, got, bytes, slack)
		}
		if floor := m.settled; index > floor {
			if got, want := tl.lastVisible(index, floor), m.lastVisible(index, floor); got != want {
				t.Fatalf("seed %d op %d: lastVisible(%d, %d) = %d, want %d", seed, op, index, floor, got, want)
			}
		}
		limit := rnd.Uint64N(m.total + 1)
		n := tl.within(m.last(), limit)
		if held := min(n, uint64(len(m.log))); held > 0 && m.total-m.before[uint64(len(m.log))-held] > limit {
			t.Fatalf("seed %d op %d: the newest %d entries take more than %d bytes", seed, op, n, limit)
		}
	}
	if tl.get(m.last()) == nil {
		t.Fatalf("seed %d op %d: the newest entry is not kept", seed, op)
	}
}

func TestTail_ForgetsTermsBelowGap(t *testing.T) {
	var x tail
	x.add([]*raft.Log{{Index: 1, Term: 1}, {Index: 2, Term: 1, Type: raft.LogNoop}, {Index: 3, Term: 2}})
	x.add([]*raft.Log{{Index: 50, Term: 7}, {Index: 51, Term: 7}}) // a snapshot up to 49 was installed in between
	for _, index := range []uint64{3, 20, 49} {
		if term, known := x.termAt(index); known {
			t.Errorf("entry %d has term %d, want none", index, term)
		}
	}
	if term, known := x.termAt(51); !known || term != 7 {
		t.Errorf("entry 51: term %d, known %v", term, known)
	}
	if got := x.lastVisible(50, 49); got != 50 {
		t.Errorf("the last visible entry up to 50 is %d", got)
	}
}
