package raftfsm

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// retryPause bounds how long a call waits for a leader before it looks again.
const retryPause = 100 * time.Millisecond

// write gets one request into the log of a group, exactly once, however often it has to
// be tried before ctx ends. It returns the position and, for group.Committed, the result.
func (h *Host) write(ctx context.Context, gid uint32, r *command.Request, ack group.Ack) (group.Answer, error) {
	o := h.origins[gid]
	for {
		id, err := o.begin(ctx)
		if err != nil {
			return group.Answer{}, err
		}
		r.ID = id
		a, sure, err := h.send(ctx, gid, r, ack)
		o.end(id)
		if err != nil || ack == group.Durable || a.Result.Outcome != kv.Stale {
			return a, err
		}
		// The group does not know this origin, or no longer keeps its results.
		if !sure {
			return a, fault.New(fault.Indeterminate, "raftfsm.write", "the write may have been applied: its result is no longer kept")
		}
		o.drop(id.Origin)
		h.metrics.retries.WithLabelValues("origin").Inc()
	}
}

// send tries a request with one id until its outcome is known or ctx ends. sure is false
// once an attempt ended without a known outcome.
func (h *Host) send(ctx context.Context, gid uint32, r *command.Request, ack group.Ack) (a group.Answer, sure bool, err error) {
	g, sure := h.groups[gid], true
	for {
		a, err = g.ProposeRequest(ctx, r, ack)
		switch fault.CodeOf(err) {
		case fault.NotLeader:
			h.metrics.retries.WithLabelValues("not_leader").Inc()
		case fault.Indeterminate:
			sure = false
			h.metrics.retries.WithLabelValues("indeterminate").Inc()
		case "":
			return a, sure, nil
		default:
			if !sure { // this attempt surely failed, an earlier one may not have
				err = asIndeterminate(err)
			}
			return a, sure, err
		}
		if ctx.Err() == nil {
			g.WaitChange(ctx, retryPause)
		}
		if ctx.Err() != nil {
			if !sure {
				return a, false, asIndeterminate(err)
			}
			return a, true, noQuorum("raftfsm.write", gid, err)
		}
	}
}

func asIndeterminate(err error) error {
	return &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.write", Msg: "the write may have been applied", Err: err}
}

func noQuorum(op string, gid uint32, err error) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum: the group had no leader in time", Err: err,
		Hint: "see 'quorate status' for group " + utoa(gid)}
}
