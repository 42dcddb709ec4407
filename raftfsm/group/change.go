package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// Servers returns the members of the newest configuration of the group, and the index of that configuration.
func (g *Group) Servers() ([]raft.Server, uint64) {
	for {
		index := max(g.disk.logs.Configuration(), g.disk.snaps.Configuration())
		servers := g.raft.GetConfiguration().Configuration().Servers
		if index == max(g.disk.logs.Configuration(), g.disk.snaps.Configuration()) {
			return servers, index
		}
	}
}

// Form makes this server the only voter of an empty group. It returns when this server leads and the group has the
// newest format level. If a call was interrupted, call Form again.
func (g *Group) Form(ctx context.Context) error {
	err := g.change(ctx, "form the group", g.raft.BootstrapCluster(aloneWith(g.opts.ServerID)))
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return err
	}
	g.guard.Campaign()
	if err := g.WaitReady(ctx); err != nil {
		return err
	}
	return g.begin(ctx)
}

// AddNonvoter adds a server that receives the log but does not vote. prev is the configuration index that the caller
// got from Servers. Error codes:
//
//	conflict        the configuration has changed since prev
//	format_blocked  the new server is too old to read the entries of the group, or its version is unknown
//	not_leader      this server does not lead, or it is transferring leadership
//	timeout         ctx has ended before the change began
//	indeterminate   the change may take effect: ctx has ended, the group is closing, or leadership was lost
//	unavailable     the group is closing, and the change has not begun
func (g *Group) AddNonvoter(ctx context.Context, id raft.ServerID, prev uint64) error {
	release, err := g.lockLevel(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := g.checkFormat(id, g.Level()); err != nil {
		return err
	}
	return g.change(ctx, "add "+string(id)+" as a non-voter",
		g.raft.AddNonvoter(id, raft.ServerAddress(id), prev, untilDeadline(ctx)))
}

// Promote makes a non-voter a voter. The caller must make sure that the non-voter has caught up, because the next
// commit may already need its acknowledgement. prev and the errors are those of AddNonvoter, except format_blocked.
func (g *Group) Promote(ctx context.Context, id raft.ServerID, prev uint64) error {
	return g.change(ctx, "make "+string(id)+" a voter",
		g.raft.AddVoter(id, raft.ServerAddress(id), prev, untilDeadline(ctx)))
}

// Demote makes a voter a non-voter. prev and the errors are those of Promote.
func (g *Group) Demote(ctx context.Context, id raft.ServerID, prev uint64) error {
	return g.change(ctx, "take the vote of "+string(id), g.raft.DemoteVoter(id, prev, untilDeadline(ctx)))
}

// Remove takes a server out of the group. prev and the errors are those of Promote.
func (g *Group) Remove(ctx context.Context, id raft.ServerID, prev uint64) error {
	return g.change(ctx, "remove "+string(id), g.raft.RemoveServer(id, prev, untilDeadline(ctx)))
}

// untilDeadline returns the time until the deadline of ctx, but at least 1 ns. It returns 0 if ctx has no deadline.
// Raft uses the result as the limit for accepting a change, and 0 means no limit.
func untilDeadline(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(deadline), time.Nanosecond)
}

// change waits for the result of the configuration change f. title describes the change in error texts. change
// returns fault.Indeterminate if ctx ends or the group closes first: the change may still take effect.
func (g *Group) change(ctx context.Context, title string, f raft.Future) error {
	done := make(chan error, 1)
	// If raft shuts down, it gives no result for a change that is committed but not yet applied. This goroutine then
	// waits until the process ends. The select below does not wait for it.
	go func() { done <- f.Error() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		return errChangeUnknown(title, ctx.Err())
	case <-g.stop:
		return errChangeUnknown(title, errClosing())
	}
	if err == nil {
		return nil
	}
	e := &fault.Error{Code: fault.Conflict, Op: "group.change", Msg: fmt.Sprintf("group %d: cannot %s", g.opts.ID,
		title), Err: err}
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		e.Code = fault.NotLeader
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		e.Code = fault.Indeterminate
	case errors.Is(err, raft.ErrEnqueueTimeout):
		e.Code = fault.Timeout
	}
	return e
}

func errChangeUnknown(title string, err error) error {
	return &fault.Error{Code: fault.Indeterminate, Op: "group.change",
		Msg: "it is not known whether this took effect: " + title, Err: err}
}
