package group

import (
	"time"

	"github.com/quorate/quorate/raftfsm/kv"
)

// Deleted records take disk space until Pebble compacts them. Log entries take space until a snapshot covers them.
// Normally, only further writes cause compactions and snapshots. A group refuses writes when its disks are nearly full,
// so it would never get this space back. Therefore every server checks regularly for space that it can free:
//
//   - If its disk is low, the server takes a snapshot, which also truncates the log. It compacts the whole database
//     once, and again whenever at least 1/64 of the database are deleted records.
//   - Otherwise, the server compacts the database if at least half of the database are deleted records.
//
// None of these actions changes the state of the group. The log keeps every entry that the snapshot does not cover. It
// also keeps the entries that a follower needs after it has received a snapshot (see raftlog.Retained).
const (
	reclaimBytes = 32 << 20 // no compaction begins if deleted records take fewer bytes
	// the same bound while the disk is low, after the whole database was compacted once
	reclaimBytesLow = 4 << 20
	// the minimum free space at which a compaction begins. A compaction needs some space itself, and must not fill
	// the disk
	reclaimRoom = 16 << 20
	// pause between two flushes of deletions while the disk has room
	reclaimFlush = time.Minute
	// the maximum pause after compactions that failed or freed little, except that the pause after a slow compaction
	// may be longer
	reclaimPause = time.Hour
)

// reclaim is the state that the group keeps between two checks for space that can be freed. Only one goroutine at a
// time uses it.
type reclaim struct {
	swept   bool      // the whole database was compacted since the disk became low
	flushed time.Time // when deletions were last flushed
	next    time.Time // no compaction begins before this time
	vain    int       // consecutive compactions that failed or freed little
}

// worthwhile reports whether a compaction should begin.
func (r *reclaim) worthwhile(g kv.Garbage, low bool) bool {
	switch {
	case !low:
		return g.Bytes >= max(reclaimBytes, g.Total/2)
	case !r.swept:
		return g.Total > 0 // overwritten records take space as well, and are not counted
	}
	return g.Bytes >= max(reclaimBytesLow, g.Total/64)
}

// flushes reports whether the deletions in memory should be written to disk now. The database estimates the space that
// a compaction can free, and ignores deletions that are still in memory.
func (r *reclaim) flushes(g kv.Garbage, low bool, now time.Time) bool {
	return g.Unflushed && (low || g.Total >= reclaimBytes && now.Sub(r.flushed) >= reclaimFlush)
}

// ended records the end of a compaction and sets the pause before the next one. took is the duration of the compaction,
// and useful is true if it freed enough space. A longer compaction causes a longer pause, so that most of the disk's
// time is left for other work.
func (r *reclaim) ended(now time.Time, took time.Duration, useful bool) {
	pause := 4 * took
	if useful {
		r.vain = 0
	} else {
		r.vain++
		pause = max(pause, min(time.Minute<<min(r.vain-1, 10), reclaimPause))
	}
	r.next = now.Add(pause)
}

// reclaimBeside starts to free disk space in the background, unless an earlier call is still doing so.
func (g *Group) reclaimBeside(low bool) {
	if g.reclaiming.Swap(true) {
		return
	}
	g.wg.Go(func() { // keep is counted in wg, so Close cannot have finished waiting yet
		defer g.reclaiming.Store(false)
		g.reclaim(low)
	})
}

func (g *Group) reclaim(low bool) {
	r, now, log := &g.reclaimed, time.Now(), g.opts.Logger
	if g.Trusted() != nil {
		return
	}
	m := g.Machine()
	garbage := m.Garbage()
	r.swept = r.swept && low
	if !r.worthwhile(garbage, low) {
		if r.flushes(garbage, low, now) {
			r.flushed = now
			if err := m.FlushDeletions(); err != nil && g.closing.Err() == nil {
				log.Warn("cannot write deletions to disk; their space is not freed yet", "group", g.opts.ID,
					"error", err)
			}
		}
		return
	}
	free := g.opts.Server.FreeDisk()
	if now.Before(r.next) || free < reclaimRoom {
		return
	}
	select {
	case g.opts.Compacting <- struct{}{}:
		defer func() { <-g.opts.Compacting }()
	default:
		return // another group of this server compacts
	}
	freed, err := m.Reclaim(g.closing, free/4)
	took := time.Since(now)
	if g.closing.Err() != nil {
		return
	}
	r.ended(now.Add(took), took, err == nil && freed >= garbage.Bytes/2)
	if err != nil {
		log.Warn("cannot free the disk space of deleted values; it is tried again", "group", g.opts.ID, "error", err)
		return
	}
	r.swept = low
	if freed >= 1<<20 {
		log.Info("disk space of deleted values was freed", "group", g.opts.ID, "bytes", freed, "took",
			took.Round(time.Millisecond))
	}
}
