package raftlog

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// Rule 2 of unsynced: terms and votes are stored after the entries that the log is still writing.
func TestUnsynced_TermIsStoredAfterEarlierEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		u := newUnsynced(func([]*raft.Log) error { <-proceed; return nil })
		st := openStable(t, filepath.Join(t.TempDir(), "stable.db"))
		defer st.Close()
		st.unsynced = u
		must(t, u.add([]*raft.Log{{Index: 1}}, func() {}))
		var stored []string
		var mu sync.Mutex
		for name, store := range map[string]func() error{
			"term": func() error { return st.SetUint64([]byte("CurrentTerm"), 2) },
			"vote": func() error {
				return errors.Join(st.SetUint64([]byte(keyLastVoteTerm), 2),
					st.Set([]byte(keyLastVoteCand), []byte("a")))
			},
		} {
			go func() {
				must(t, store())
				mu.Lock()
				defer mu.Unlock()
				stored = append(stored, name)
			}()
		}
		synctest.Wait()
		mu.Lock()
		if len(stored) != 0 {
			t.Errorf("stored before the entries: %v", stored)
		}
		mu.Unlock()
		close(proceed)
		synctest.Wait()
		if len(stored) != 2 {
			t.Errorf("stored: %v", stored)
		}
	})
}

// Rule 3 of unsynced, with many waiting goroutines: entries reach the disk in the order of the log. Entries that are
// reported as durable are on the disk.
func TestUnsynced_WritesInLogOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		disk, writers := uint64(0), 0
		u := newUnsynced(func(batch []*raft.Log) error {
			mu.Lock()
			if writers++; writers > 1 {
				t.Error("two writers at the same time")
			}
			mu.Unlock()
			<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			writers--
			for _, l := range batch {
				if l.Index != disk+1 {
					t.Errorf("entry %d was written after %d", l.Index, disk)
				}
				disk = l.Index
			}
			return nil
		})
		held := func(index uint64) {
			mu.Lock()
			defer mu.Unlock()
			if disk < index {
				t.Errorf("entry %d is reported as durable, the disk ends at %d", index, disk)
			}
		}
		var waiting sync.WaitGroup
		next := uint64(1)
		for range 300 {
			var batch []*raft.Log
			for range 1 + rand.IntN(4) {
				batch = append(batch, &raft.Log{Index: next})
				next++
			}
			must(t, u.add(batch, func() {}))
			last := next - 1
			waiting.Go(func() { must(t, u.wait(last)); held(last) })
			if rand.IntN(10) == 0 {
				must(t, u.drain())
				held(last)
			}
		}
		waiting.Wait()
		must(t, u.drain())
		held(next - 1)
	})
}

// After a failed write, no entries are accepted, and every wait returns the error.
func TestUnsynced_FailedWriteEndsAllWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		u := newUnsynced(func([]*raft.Log) error { <-proceed; return fault.New(fault.Internal, "test", "broken") })
		must(t, u.add([]*raft.Log{{Index: 1}}, func() {}))
		must(t, u.add([]*raft.Log{{Index: 2}}, func() {}))
		errs := make(chan error, 4)
		go func() { errs <- u.wait(1) }()
		go func() { errs <- u.wait(2) }()
		go func() { errs <- u.drain() }()
		go func() { errs <- u.add([]*raft.Log{{Index: 3}}, func() { t.Error("accepted") }) }()
		synctest.Wait()
		close(proceed)
		for range 4 {
			wantCode(t, <-errs, fault.Internal)
		}
	})
}

type closingStore struct{ *raft.InmemStore }

func (closingStore) Close() error { return nil }

// A durable entry is in the log, whether the leader is ahead of its disk or not.
func TestUnsynced_EntryIsInLogBeforeItIsDurable(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		s := logsOver(closingStore{raft.NewInmemStore()}, &seams{ahead: ahead, fatal: unexpected(t)})
		must(t, s.StoreLogs([]*raft.Log{{Index: 1, Term: 7, Data: []byte("x")}}))
		must(t, s.WaitDurable(1))
		if got, known := s.TermAt(1); !known || got != 7 || s.last.Load() != 1 {
			t.Errorf("ahead %t: the term of entry 1 is %d (known: %t), the log ends with %d", ahead, got, known,
				s.last.Load())
		}
		must(t, s.Close())
	}
}

// A single voter waits for its own disk, because no other server confirms its entries. A change of the
// configuration waits as well.
func TestUnsynced_OnlyLeaderWithOtherVotersIsAheadOfDisk(t *testing.T) {
	log := func(index uint64, kind raft.LogType) []*raft.Log {
		return []*raft.Log{{Index: index, Term: 1, Type: kind, Data: []byte("x")}}
	}
	for name, c := range map[string]struct {
		leads bool
		make  func() []*raft.Log
		ahead bool
	}{
		"a leader of others":          {true, func() []*raft.Log { return log(1, raft.LogCommand) }, true},
		"a lone voter, or a follower": {false, func() []*raft.Log { return log(1, raft.LogCommand) }, false},
		"a change of the members":     {true, func() []*raft.Log { return log(1, raft.LogConfiguration) }, false},
		"what another leader has sent": {true, func() []*raft.Log {
			l := log(1,
				raft.LogCommand)
			Seal(l[0])
			return l
		}, false},
		"more than is kept in memory": {true, func() []*raft.Log {
			l := log(1, raft.LogCommand)
			l[0].Data = make([]byte, unsyncedBytes)
			return l
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			proceed, written := make(chan struct{}), make(chan struct{})
			s := logsOver(closingStore{raft.NewInmemStore()},
				&seams{ahead: c.leads, fatal: unexpected(t), step: func(step string) {
					if step == "log-append" && c.ahead {
						<-proceed
					}
				}})
			go func() { must(t, s.StoreLogs(c.make())); close(written) }()
			<-written
			last, _ := s.engine.LastIndex()
			if ahead := last == 0; ahead != c.ahead {
				t.Errorf("ahead of its disk: %t", ahead)
			}
			var l raft.Log
			if must(t, s.GetLog(1, &l)); l.Index != 1 {
				t.Errorf("the entry is not found: %+v", l)
			}
			close(proceed)
			must(t, s.Close())
		})
	}
}
