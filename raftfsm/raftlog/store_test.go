package raftlog

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// entriesFrom returns the entries lo to hi of term 1.
func entriesFrom(lo, hi uint64) (out []*raft.Log) {
	for i := lo; i <= hi; i++ {
		out = append(out, &raft.Log{Index: i, Term: 1, Data: []byte("x")})
	}
	return out
}

func TestStoreLogs_RefusesGap(t *testing.T) {
	for name, c := range map[string]struct {
		base, last, first uint64
		refused           bool
	}{
		"after the last entry":             {0, 5, 6, false},
		"beyond the last entry":            {0, 5, 7, true},
		"an entry that the log has":        {0, 5, 5, true},
		"after the snapshot":               {50, 0, 51, false},
		"before the end of the snapshot":   {50, 0, 1, true},
		"beyond the end of the snapshot":   {50, 0, 52, true},
		"a log that goes on after it":      {3, 5, 6, false},
		"an empty log without a snapshot":  {0, 0, 1, false},
		"the snapshot before raft has run": {0, 0, 51, false},
	} {
		s := logsOver(closingStore{raft.NewInmemStore()}, &seams{fatal: unexpected(t), base: c.base})
		if c.last > 0 {
			must(t, s.append(entriesFrom(1, c.last)))
			s.note(entriesFrom(1, c.last))
		}
		err := s.StoreLogs(entriesFrom(c.first, c.first+1))
		want := c.first + 1
		if c.refused {
			wantCode(t, err, fault.Conflict)
			want = c.last
		} else {
			must(t, err)
		}
		if _, last, err := s.Ends(); err != nil || last != want {
			t.Errorf("%s: the log ends at %d (%v), want %d", name, last, err, want)
		}
	}
}

// busyEngine calls beforeEnd once, when the end of the log is read.
type busyEngine struct {
	Backend
	beforeEnd func()
}

func (e *busyEngine) LastIndex() (uint64, error) {
	last, err := e.Backend.LastIndex()
	if f := e.beforeEnd; f != nil {
		e.beforeEnd = nil
		f()
	}
	return last, err
}

// A snapshot is installed and the first entries after it are stored while another goroutine compacts the log.
func TestDeleteRange_CompactionDoesNotMoveEndOfClearedLog(t *testing.T) {
	engine, role := &busyEngine{Backend: closingStore{raft.NewInmemStore()}}, &seams{fatal: unexpected(t)}
	s := logsOver(engine, role)
	must(t, s.StoreLogs(entriesFrom(1, 20)))
	role.step = func(step string) {
		if step != "log-truncated" {
			return
		}
		role.step = nil
		must(t, s.DeleteRange(11, 20))
		role.base = 30
		engine.beforeEnd = func() { must(t, s.StoreLogs(entriesFrom(31, 32))) }
		if s.Last() != 0 {
			t.Fatalf("the log was cleared and ends at %d", s.Last())
		}
	}
	must(t, s.DeleteRange(1, 10))
	if engine.beforeEnd != nil {
		engine.beforeEnd()
	}
	if s.Last() != 32 {
		t.Errorf("the log ends at %d, want 32", s.Last())
	}
	var l raft.Log
	if must(t, s.GetLog(32, &l)); s.tail.get(32) == nil {
		t.Error("entry 32 is no longer in memory")
	}
}
