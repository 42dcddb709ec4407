package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/integrity"
)

// keep runs housekeeping until the group closes. On the leader it proposes the removal of expired items. On every
// server it takes a snapshot when the log has grown enough, writes the floor file, and frees disk space.
func (g *Group) keep() {
	defer g.wg.Done()
	t := g.opts.Timing
	expiry, snapshot, floor := time.NewTicker(t.ExpiryEvery), time.NewTicker(t.SnapshotPoll),
		time.NewTicker(t.FloorEvery)
	space := time.NewTicker(t.Reclaim)
	defer space.Stop()
	defer floor.Stop()
	defer expiry.Stop()
	defer snapshot.Stop()
	snapping := make(chan struct{}, 1)
	for {
		select {
		case <-expiry.C:
			g.expire()
		case <-snapshot.C:
			if g.snapshotDue() {
				g.snapshotBeside(snapping)
			}
		case <-floor.C:
			g.disk.seen.Keep(g.raft.GetConfiguration().Configuration().Servers)
			g.disk.snaps.WriteFloor()
		case <-space.C:
			low := g.opts.Server.DiskLow()
			if low && g.newEntries() > 0 {
				g.snapshotBeside(snapping)
			}
			g.reclaimBeside(low)
		case <-g.refresh:
			g.snapshotBeside(snapping)
		case <-g.stop:
			snapping <- struct{}{} // waits for a running snapshot
			return
		}
	}
}

// expire removes expired items until none is left. It ends early if this server no longer leads or trusts its state,
// if a proposal fails, or if the group closes.
func (g *Group) expire() {
	ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timing.StallFatal)
	defer cancel()
	for g.Leading() && g.Doubt() == nil {
		due, any := g.Machine().NextDue()
		if !any || due > g.clock.leader() {
			return
		}
		a, err := g.proposeOwn(ctx, &command.Request{Kind: command.KindExpire, Limit: g.opts.Bounds.ExpireLimit},
			Committed)
		if err != nil {
			if !fault.Is(err, fault.NotLeader) {
				g.opts.Logger.Warn("cannot remove expired keys; the next round tries again", "group", g.opts.ID,
					"error", err)
			}
			return
		}
		g.obs.expired.Add(float64(a.Result.Expired))
		if !a.Result.More {
			return
		}
		select {
		case <-g.stop:
			return
		default:
		}
	}
}

// snapshotDue reports whether the log has grown enough since the last snapshot.
func (g *Group) snapshotDue() bool {
	entries := g.newEntries()
	return entries > 0 && (entries >= g.opts.Bounds.SnapshotEntries ||
		g.disk.logs.BytesSince(g.disk.snaps.Index()+1) >= g.opts.Bounds.SnapshotLogBytes)
}

// newEntries returns the number of applied entries that the last snapshot does not cover. It returns 0 while this
// server replaces its state with a copy from another server.
func (g *Group) newEntries() uint64 {
	if g.integrity.Reinstalling() {
		return 0 // the entries after the snapshot are needed to bring the new state up to date
	}
	applied := g.raft.AppliedIndex()
	return applied - min(g.disk.snaps.Index(), applied)
}

// snapshotBeside starts a snapshot in the background, unless a snapshot is already running. running is a channel of
// capacity 1, which contains an element while a snapshot runs.
func (g *Group) snapshotBeside(running chan struct{}) {
	select {
	case running <- struct{}{}:
	default:
		return
	}
	g.trimTrailing()
	go func() {
		defer func() { <-running }()
		if err := g.Snapshot(); err != nil && !errors.Is(err, raft.ErrRaftShutdown) {
			g.opts.Logger.Warn("snapshot failed; the log keeps growing until one succeeds", "group", g.opts.ID,
				"error", err)
		}
	}()
}

// trimTrailing limits the bytes of log entries that raft keeps for slow followers after the next snapshot. Raft
// itself limits only the number of these entries. If the disk is low, the limit is an eighth of Bounds.TrailingBytes.
func (g *Group) trimTrailing() {
	size, least := g.opts.Bounds.TrailingBytes, uint64(64)
	if g.opts.Server.DiskLow() {
		size, least = size/8, least/8 // 8 entries are still more than the default of Bounds.Window
	}
	keep := min(g.opts.Bounds.TrailingEntries, max(g.disk.logs.EntriesWithin(g.raft.LastIndex(), size), least))
	conf := g.raft.ReloadableConfig()
	if conf.TrailingLogs == keep {
		return
	}
	conf.TrailingLogs = keep
	if err := g.raft.ReloadConfig(conf); err != nil {
		g.opts.Logger.Warn("cannot adjust the trailing log", "group", g.opts.ID, "error", err)
	}
}

// guardDisk checks whether a log write hangs, ten times per Timing.StallFatal. It runs in a goroutine of its own and
// never accesses the disk, because an access to a hanging disk would hang as well.
func (g *Group) guardDisk() {
	defer g.wg.Done()
	tick := time.NewTicker(max(g.opts.Timing.StallFatal/10, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.watchDisk()
		case <-g.stop:
			return
		}
	}
}

// watchDisk logs an error if a log write hangs for longer than Timing.Stall. If the write hangs for longer than
// Timing.StallFatal, watchDisk calls Options.Fatal. The process should then end, so that another server becomes
// leader.
func (g *Group) watchDisk() {
	d := g.disk.logs.Stalled()
	if d > g.opts.Timing.Stall {
		g.opts.Logger.Error("the disk hangs: a log write has not returned", "group", g.opts.ID,
			"for", d.Round(time.Millisecond), "dir", g.opts.Dir)
	}
	if d > g.opts.Timing.StallFatal {
		g.opts.Fatal(&fault.Error{Code: fault.Internal, Op: "group.watchDisk",
			Msg:  fmt.Sprintf("a log write in %s has been hanging for %s", g.opts.Dir, d.Round(time.Second)),
			Hint: "check the disk and its controller; nothing acknowledged is lost"})
	}
}

// watchState regularly compares the state of this server with the state of the other servers, verifies the stored
// records, and replaces a wrong state. It also transfers leadership if the disk of this server is slow.
func (g *Group) watchState() {
	defer g.wg.Done()
	t := g.opts.Timing
	look, compare := time.NewTicker(t.SlowLook), time.NewTicker(min(max(t.Compare/integrity.Tries, time.Millisecond),
		time.Second))
	defer look.Stop()
	defer compare.Stop()
	verify := time.NewTimer(t.FirstVerify)
	defer verify.Stop()
	for {
		select {
		case now := <-look.C:
			g.disk.pace.EndWindow(g.disk.logs.Stalled())
			g.relieve(now)
		case <-compare.C:
			g.integrity.Round()
		case <-verify.C:
			g.verifyBeside()
			verify.Reset(t.Verify)
		case <-g.disk.fsm.Received():
			verify.Reset(0) // a state received from a leader is verified completely
		case <-g.stop:
			return
		}
	}
}

// verifyBeside verifies all records in the background, unless a verification is already running.
func (g *Group) verifyBeside() {
	if g.verifying.Swap(true) {
		return
	}
	g.wg.Go(func() { // watchState is counted in wg, so Close cannot have finished waiting yet
		defer g.verifying.Store(false)
		g.integrity.Verify()
	})
}
