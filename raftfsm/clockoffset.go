package raftfsm

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// wallClock returns the wall clock time in Unix milliseconds. It calls the function now, or time.Now if now is nil.
func wallClock(now func() time.Time) uint64 {
	if now == nil {
		now = time.Now
	}
	return uint64(max(now().UnixMilli(), 0)) //nolint:gosec // not negative
}

// Offset returns how far a wall clock is ahead of the cluster time of the group g. The result is negative if the wall
// clock is behind. wall is the time of the wall clock in Unix milliseconds. This server must be the leader of g.
func Offset(g *group.Group, wall uint64) time.Duration {
	return time.Duration(int64(wall)-int64(g.Now())) * time.Millisecond //nolint:gosec // times in this millennium
}

// Wall returns the wall clock of this node in Unix milliseconds.
func (h *Host) Wall() uint64 { return wallClock(h.opts.Now) }

// ClockOffset returns how far the wall clock of this node is ahead of the cluster time of group 0. It queries the
// leader, so the result can be wrong by up to maxError. ClockOffset returns fault.Unimplemented on a node without data,
// and fault.Unavailable on a removed server.
func (h *Host) ClockOffset(ctx context.Context) (ahead, maxError time.Duration, err error) {
	s, ok := h.replica.(*server)
	if !ok {
		return 0, 0, fault.New(fault.Unimplemented, "raftfsm.ClockOffset", "this node has no replica")
	}
	if len(s.groups) == 0 { // it was removed
		return 0, 0, fault.New(fault.Unavailable, "raftfsm.ClockOffset", "this server serves no group")
	}
	r := reading{server: s, group: s.groups[0]}
	sent := time.Now()
	ri, _, err := r.readIndex(ctx, raftlog.Position{})
	if err != nil {
		return 0, 0, err
	}
	maxError = time.Since(sent)
	ahead = time.Duration(int64(h.Wall())-int64(ri.Now)) * time.Millisecond //nolint:gosec // times in this millennium
	return ahead, maxError, nil
}
