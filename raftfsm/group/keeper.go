package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// keep does the group's housekeeping: it removes what is due (on the leader, through the
// log), and takes a snapshot when the log has grown.
func (g *Group) keep() {
	defer g.wg.Done()
	t := g.opts.Timing
	expiry, snapshot := time.NewTicker(t.ExpiryEvery), time.NewTicker(t.SnapshotPoll)
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
		case <-g.refresh:
			g.snapshotBeside(snapping)
		case <-g.stop:
			snapping <- struct{}{} // waits for a snapshot under way
			return
		}
	}
}

// expire removes what is due, as long as there is more and this server leads.
func (g *Group) expire() {
	ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timing.StallFatal)
	defer cancel()
	for g.Leading() && g.Doubt() == nil {
		due, any := g.Machine().NextDue()
		if !any || due > g.clock.leader() {
			return
		}
		a, err := g.proposeOwn(ctx, &command.Request{Kind: command.KindExpire, Limit: g.opts.Bounds.ExpireLimit}, Committed)
		if err != nil {
			if !fault.Is(err, fault.NotLeader) {
				g.opts.Logger.Warn("cannot remove expired keys; the next round tries again", "group", g.opts.ID, "error", err)
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
	last := g.disk.snaps.index()
	entries := g.raft.AppliedIndex() - min(last, g.raft.AppliedIndex())
	if g.reinstalling.Load() {
		return false // the entries behind a snapshot are needed to bring the new state up to date
	}
	return entries > 0 && (entries >= g.opts.Bounds.SnapshotEntries || g.disk.logs.tail.since(last+1) >= g.opts.Bounds.SnapshotLogBytes)
}

// snapshotBeside starts a snapshot beside the keeper unless one is running. running has
// one slot.
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
			g.opts.Logger.Warn("snapshot failed; the log keeps growing until one succeeds", "group", g.opts.ID, "error", err)
		}
	}()
}

// trimTrailing bounds the entries kept behind the next snapshot in bytes: raft only
// counts them.
func (g *Group) trimTrailing() {
	keep := min(g.opts.Bounds.TrailingEntries, max(g.disk.logs.tail.within(g.raft.LastIndex(), g.opts.Bounds.TrailingBytes), 64))
	conf := g.raft.ReloadableConfig()
	if conf.TrailingLogs == keep {
		return
	}
	conf.TrailingLogs = keep
	if err := g.raft.ReloadConfig(conf); err != nil {
		g.opts.Logger.Warn("cannot adjust the trailing log", "group", g.opts.ID, "error", err)
	}
}

// guardDisk watches the disk. It touches memory only, and has a goroutine of its own: on a
// disk that hangs for reads too, whoever reads the database hangs with it.
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

// watchDisk ends the process when a log write hangs: whoever waits for it is better
// served by another server.
func (g *Group) watchDisk() {
	d := g.disk.logs.stalled()
	if d > g.opts.Timing.Stall {
		g.opts.Logger.Error("the disk hangs: a log write has not returned", "group", g.opts.ID, "for", d.Round(time.Millisecond), "dir", g.opts.Dir)
	}
	if d > g.opts.Timing.StallFatal {
		g.opts.Fatal(&fault.Error{Code: fault.Internal, Op: "group.watchDisk",
			Msg:  fmt.Sprintf("a log write in %s has been hanging for %s", g.opts.Dir, d.Round(time.Second)),
			Hint: "check the disk and its controller; nothing acknowledged is lost"})
	}
}
