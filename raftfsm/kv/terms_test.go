package kv_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/raftfsm/kv"
)

// in applies one command of a term at each of the indexes.
func (r *rig) in(term uint64, indexes ...uint64) {
	r.t.Helper()
	for _, i := range indexes {
		e := entryOf(r.t, i, 1, write(set("k", fmt.Sprint(i))))
		e.Term = term
		if out := r.Apply([]kv.Entry{e}); out[0].Err != nil {
			r.t.Fatal(out[0].Err)
		}
	}
}

func checkWrote(t *testing.T, m *kv.Machine, when string, term, index uint64, want string) {
	t.Helper()
	got := "unknown"
	switch wrote, known := m.Wrote(term, index); {
	case wrote:
		got = "held"
	case known:
		got = "lost"
	}
	if got != want {
		t.Errorf("%s: command %d of term %d: %s, want %s", when, index, term, got, want)
	}
}

func TestWrote_CommandsOfOldTerms(t *testing.T) {
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	r.in(2, 3, 4, 5)
	r.Apply([]kv.Entry{{Index: 7, Term: 4}}) // an entry without a command
	r.in(4, 9, 10)
	r.in(6, 13)
	for _, when := range []string{"applied", "opened again"} {
		for _, c := range []struct {
			term, index uint64
			want        string
		}{
			{1, 1, "unknown"}, // the term is older than all recorded terms
			{2, 3, "held"}, {2, 5, "held"},
			{2, 6, "lost"}, // where term 4 begins
			{3, 6, "lost"}, {3, 99, "unknown"},
			{4, 7, "held"}, {4, 10, "held"}, {4, 11, "lost"}, {4, 99, "unknown"},
			{5, 12, "lost"},
			{6, 13, "held"},
			{6, 14, "unknown"}, // the entry may still come
			{7, 13, "unknown"},
		} {
			checkWrote(t, r.Machine, when, c.term, c.index, c.want)
		}
		if when == "applied" {
			flush(t, r.Machine)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			m, err := kv.Open(options(t, fs))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			r = &rig{t: t, Machine: m}
		}
	}
}

func TestTerms_ForgottenBeyondBoundAndByRestore(t *testing.T) {
	r := newRig(t)
	for term := uint64(1); term <= kv.MaxTerms+5; term++ {
		r.in(term, 2*term)
	}
	checkWrote(t, r.Machine, "full", 5, 10, "unknown")
	checkWrote(t, r.Machine, "full", 6, 12, "held")
	checkWrote(t, r.Machine, "full", 6, 13, "lost")
	stored := 0
	for _, line := range dump(t, r.Machine) {
		if line[:2] == "08" {
			stored++
		}
	}
	if stored != kv.MaxTerms {
		t.Errorf("%d terms are stored, want %d", stored, kv.MaxTerms)
	}
	if err := r.SetApplied(9000, 3000); err != nil {
		t.Fatal(err)
	}
	checkWrote(t, r.Machine, "restored", 6, 12, "unknown")
	r.in(3001, 9001)
	checkWrote(t, r.Machine, "restored", 6, 12, "unknown")
	checkWrote(t, r.Machine, "restored", 3001, 9001, "held")
}
