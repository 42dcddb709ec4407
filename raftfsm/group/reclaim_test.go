package group

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// lowDisk is a Server whose disk is low while low is true.
type lowDisk struct {
	NoServer
	low *atomic.Bool
}

func (s lowDisk) DiskLow() bool  { return s.low.Load() }
func (lowDisk) FreeDisk() uint64 { return 100 << 20 }

func deletion(key string) *command.Request {
	return &command.Request{Kind: command.KindWrite,
		Ops: []command.Op{{Kind: command.OpDelete, Store: store, Key: key}}}
}

// A server with a low disk frees the space of deleted values, although nothing is written. A follower that needs
// truncated entries gets a snapshot. A restart finds everything that was acknowledged.
func TestReclaim_LowDiskFreesSpaceAndServesFollowers(t *testing.T) {
	engines(t, func(t *testing.T, e raftlog.Engine) {
		var low atomic.Bool
		c := newCluster(t, func(id raft.ServerID, o *Options) {
			slowLeader(id, o)
			o.Engine, o.Server, o.Timing.Reclaim = e, lowDisk{low: &low}, 20*time.Millisecond
			o.Bounds.SnapshotEntries, o.Bounds.SnapshotLogBytes = 1<<40, 1<<40 // no snapshots because of the log
		})
		a := c.group("a")
		c.isolate("c")
		source, bytes := rand.NewChaCha8([32]byte{1}), make([]byte, 32<<10) // values that do not compress
		value := func(i int) string { _, _ = source.Read(bytes); return string(bytes) + key(i) }
		last := ""
		for i := range 300 {
			last = value(i)
			put(t, a, key(i), last)
		}
		for i := range 290 {
			_, err := a.Propose(limited(t), encoded(t, deletion(key(i))), Committed)
			must(t, err)
		}
		before, applied := a.Machine().Garbage(), a.Machine().Applied()
		if a.disk.snaps.Index() != 0 {
			t.Fatal("there is a snapshot while the disk has room")
		}
		low.Store(true)
		for _, id := range []raft.ServerID{"a", "b"} {
			g := c.group(id)
			eventually(t, func() error {
				first, _, err := g.disk.logs.Ends()
				must(t, err)
				garbage, snapshot := g.Machine().Garbage(), g.disk.snaps.Index()
				if snapshot < applied || first == 1 || garbage.Unflushed || garbage.Total > 1<<20 {
					return fmt.Errorf("%s: snapshot %d of %d, the log begins at %d; %+v, before %+v", id, snapshot,
						applied, first, garbage, before)
				}
				return nil
			})
		}
		put(t, a, "last", "1")
		c.heal()
		c.converge()
		follower := c.group("c")
		until(t, "c was not sent a snapshot, although the log lacks entries", func() bool {
			return counted(t, follower.obs.installed) > 0
		})
		c.stop("b")
		c.start("b")
		c.converge()
		for id, g := range c.running() {
			if got := peekValue(t, g, "last"); got != "1" {
				t.Errorf("%s: %q", id, got)
			}
			if got := peekValue(t, g, key(299)); got != last {
				t.Errorf("%s: a value that was not deleted is lost", id)
			}
			if got := peekValue(t, g, key(1)); got != "" {
				t.Errorf("%s: a deleted value is there", id)
			}
		}
	})
}

func TestReclaim_Decisions(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		garbage kv.Garbage
		low     bool
		swept   bool
		want    bool
	}{
		"nothing deleted":                 {kv.Garbage{Total: 900 * mib}, false, false, false},
		"less than half is garbage":       {kv.Garbage{Total: 900 * mib, Bytes: 449 * mib}, false, false, false},
		"half is garbage":                 {kv.Garbage{Total: 900 * mib, Bytes: 450 * mib}, false, false, true},
		"all of a small database":         {kv.Garbage{Total: 31 * mib, Bytes: 31 * mib}, false, false, false},
		"the disk became low":             {kv.Garbage{Total: 900 * mib}, true, false, true},
		"the disk is low, and swept":      {kv.Garbage{Total: 900 * mib}, true, true, false},
		"the disk is low, a 64th garbage": {kv.Garbage{Total: 640 * mib, Bytes: 10 * mib}, true, true, true},
		"the disk is low, little garbage": {kv.Garbage{Total: 640 * mib, Bytes: 9 * mib}, true, true, false},
		"an empty database":               {kv.Garbage{}, true, false, false},
	} {
		r := reclaim{swept: c.swept}
		if got := r.worthwhile(c.garbage, c.low); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	now := time.Now()
	unflushed := kv.Garbage{Total: 40 * mib, Unflushed: true}
	for name, c := range map[string]struct {
		flushed time.Time
		garbage kv.Garbage
		low     bool
		want    bool
	}{
		"never":            {time.Time{}, unflushed, false, true},
		"just now":         {now.Add(-time.Second), unflushed, false, false},
		"just now, low":    {now.Add(-time.Second), unflushed, true, true},
		"a minute ago":     {now.Add(-time.Minute), unflushed, false, true},
		"nothing to flush": {time.Time{}, kv.Garbage{Total: 40 * mib}, true, false},
		"small":            {time.Time{}, kv.Garbage{Total: mib, Unflushed: true}, false, false},
	} {
		r := reclaim{flushed: c.flushed}
		if got := r.flushes(c.garbage, c.low, now); got != c.want {
			t.Errorf("flushed %s: %v", name, got)
		}
	}
	var r reclaim
	r.ended(now, 2*time.Second, true)
	if r.next != now.Add(8*time.Second) {
		t.Errorf("after a useful compaction: %v", r.next.Sub(now))
	}
	for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		if r.ended(now, time.Second, false); r.next != now.Add(want) {
			t.Errorf("after %d in vain: %v", i+1, r.next.Sub(now))
		}
	}
	for range 20 {
		r.ended(now, time.Second, false)
	}
	if r.next != now.Add(time.Hour) {
		t.Errorf("after many in vain: %v", r.next.Sub(now))
	}
}
