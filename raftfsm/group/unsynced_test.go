package group

import (
	"context"
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

// Invariant 1 of unsynced. The leader's disk hangs in the write of an entry; the others get
// it and answer. Without the guard it is committed, and answered, then.
func TestALeaderCommitsNothingThatItsOwnDiskDoesNotHold(t *testing.T) {
	for name, off := range map[string]bool{"with the guard": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, simBreak{early: off}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) { s.hanging(t, id, lead, off) })
		})
	}
}

func (s *sim) hanging(t *testing.T, id raft.ServerID, lead *Group, off bool) {
	before := lead.LastIndex()
	s.hangs(id, true)
	answered := make(chan error, 1)
	go func() {
		_, err := lead.ProposeRequest(context.Background(), setRequest("k", "v"), Committed)
		answered <- err
	}()
	after(100 * time.Millisecond) // of virtual time, far below Timing.Stall: all messages have arrived
	for _, l := range s.alive() {
		if l.group.LastIndex() <= before {
			t.Errorf("%s was not sent the entry while the leader's disk was writing it", l.wire.id)
		}
	}
	if committed := lead.raft.CommitIndex() > before; committed != off {
		t.Errorf("committed before the leader's disk held it: %t", committed)
	}
	s.hangs(id, false)
	must(t, <-answered)
}

// Invariant 2: a term, and a vote, come after what the log still writes.
func TestATermIsStoredAfterTheEntriesBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		u := newUnsynced(func([]*raft.Log) error { <-proceed; return nil })
		st := openStable(t, filepath.Join(t.TempDir(), "stable.db"))
		defer st.Close()
		st.first = u.drain
		must(t, u.add([]*raft.Log{{Index: 1}}, func() {}))
		var stored []string
		var mu sync.Mutex
		for name, store := range map[string]func() error{
			"term": func() error { return st.SetUint64([]byte("CurrentTerm"), 2) },
			"vote": func() error {
				return errors.Join(st.SetUint64([]byte(keyLastVoteTerm), 2), st.Set([]byte(keyLastVoteCand), []byte("a")))
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

// Invariant 3, with many writers of waits: what is said to be durable is, and the order is
// that of the log.
func TestEntriesReachTheDiskInTheOrderOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		disk, writers := uint64(0), 0
		u := newUnsynced(func(batch []*raft.Log) error {
			mu.Lock()
			if writers++; writers > 1 {
				t.Error("two writers")
			}
			mu.Unlock()
			after(time.Duration(rand.IntN(3)) * time.Millisecond)
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
				t.Errorf("entry %d is said to be durable, the disk ends with %d", index, disk)
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

// Nothing is taken, and nobody waits for ever, after a write that failed.
func TestAFailedWriteEndsAllWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		u := newUnsynced(func([]*raft.Log) error { <-proceed; return fault.New(fault.Internal, "test", "broken") })
		must(t, u.add([]*raft.Log{{Index: 1}}, func() {}))
		must(t, u.add([]*raft.Log{{Index: 2}}, func() {}))
		errs := make(chan error, 4)
		go func() { errs <- u.wait(1) }()
		go func() { errs <- u.wait(2) }()
		go func() { errs <- u.drain() }()
		go func() { errs <- u.add([]*raft.Log{{Index: 3}}, func() { t.Error("taken") }) }()
		synctest.Wait()
		close(proceed)
		for range 4 {
			wantCode(t, <-errs, fault.Internal)
		}
	})
}

type closingStore struct{ *raft.InmemStore }

func (closingStore) Close() error { return nil }

// Who hears that an entry is durable finds it in the log, ahead of the disk or not.
func TestAnEntryIsInTheLogBeforeItIsSaidToBeDurable(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		s := newLogs(closingStore{raft.NewInmemStore()}, func(err error) { t.Error(err) }, func(time.Duration, int, int) {}, noStep)
		early := func() bool { return ahead }
		s.early.Store(&early)
		data, told := []byte("x"), make(chan struct{})
		s.onDurable(data, func(index, term uint64) {
			if got, known := s.termAt(index); !known || got != term || s.last.Load() != index {
				t.Errorf("ahead %t: the term of entry %d is %d (known: %t), the log ends with %d", ahead, index, got, known, s.last.Load())
			}
			close(told)
		})
		must(t, s.StoreLogs([]*raft.Log{{Index: 1, Term: 1, Data: data}}))
		<-told
		must(t, s.Close())
	}
}

// A lone voter has nobody's answer to wait for: it waits for its disk, and so does whoever
// changes the configuration.
func TestOnlyALeaderOfOthersIsAheadOfItsDisk(t *testing.T) {
	log := func(index uint64, kind raft.LogType) []*raft.Log {
		return []*raft.Log{{Index: index, Term: 1, Type: kind, Data: []byte("x")}}
	}
	yes, no := func() bool { return true }, func() bool { return false }
	for name, c := range map[string]struct {
		early *func() bool
		make  func() []*raft.Log
		ahead bool
	}{
		"a leader of others":           {&yes, func() []*raft.Log { return log(1, raft.LogCommand) }, true},
		"a lone voter, or a follower":  {&no, func() []*raft.Log { return log(1, raft.LogCommand) }, false},
		"before raft runs":             {nil, func() []*raft.Log { return log(1, raft.LogCommand) }, false},
		"a change of the members":      {&yes, func() []*raft.Log { return log(1, raft.LogConfiguration) }, false},
		"what another leader has sent": {&yes, func() []*raft.Log { l := log(1, raft.LogCommand); seal(l[0]); return l }, false},
		"more than is kept in memory": {&yes, func() []*raft.Log {
			l := log(1, raft.LogCommand)
			l[0].Data = make([]byte, unsyncedBytes)
			return l
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			proceed, written := make(chan struct{}), make(chan struct{})
			s := newLogs(closingStore{raft.NewInmemStore()}, func(err error) { t.Error(err) }, func(time.Duration, int, int) {}, func(step string) {
				if step == "log-append" && c.ahead {
					<-proceed
				}
			})
			s.early.Store(c.early)
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
