package raftfsm_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// testClock follows real time and can be moved forward.
type testClock struct{ offset atomic.Int64 }

func (c *testClock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *testClock) advance(d time.Duration) { c.offset.Add(int64(d)) }

func TestStore_Conformance(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*raftlog.Engine, *uint32){
		"boltdb, one partition": func(e *raftlog.Engine, p *uint32) { *e, *p = raftlog.BoltDB, 1 },
		"wal, four partitions":  func(e *raftlog.Engine, p *uint32) { *e, *p = raftlog.WAL, 4 },
	} {
		t.Run(name, func(t *testing.T) {
			var clock testClock
			o := options(t, t.TempDir())
			o.Now = clock.now
			change(&o.Engine, &o.Partitions)
			h := open(t, o)
			statetest.Run(t, func(*testing.T) state.Store { return h.Store("ns", "suite") },
				statetest.Options{Clock: &statetest.Clock{Now: clock.now, Advance: clock.advance}, RequestIDs: true})
		})
	}
}
