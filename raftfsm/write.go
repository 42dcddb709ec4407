package raftfsm

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

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
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return a, true, err
	}
	values := storesValues(r)
	for {
		a, err = h.propose(ctx, gid, data, ack, values)
		switch fault.CodeOf(err) {
		case fault.NotLeader:
			h.metrics.retries.WithLabelValues("not_leader").Inc()
		case fault.Unavailable: // the leader could not be reached, or goes away
			if h.elsewhere(g) == "" {
				return a, sure, unless(sure, err)
			}
			h.metrics.retries.WithLabelValues("unreachable").Inc()
		case fault.Indeterminate:
			sure = false
			h.metrics.retries.WithLabelValues("indeterminate").Inc()
		case "":
			return a, sure, nil
		default:
			return a, sure, unless(sure, err)
		}
		if ctx.Err() == nil {
			g.WaitChange(ctx, retryPause)
		}
		if ctx.Err() != nil {
			return a, sure, unless(sure, noQuorum("raftfsm.write", gid, err))
		}
	}
}

// propose hands an encoded request to the leader: here, or one hop away.
func (h *Host) propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack, values bool) (group.Answer, error) {
	g := h.groups[gid]
	if to := h.elsewhere(g); to != "" {
		return h.remotePropose(ctx, to, gid, data, ack, values)
	}
	if values {
		if err := h.space.allowed(); err != nil {
			return group.Answer{}, err
		}
	}
	return g.Propose(ctx, data, ack)
}

// elsewhere is the server that leads g, if it is known and not this one.
func (h *Host) elsewhere(g *group.Group) raft.ServerID {
	if h.opts.Peers == nil {
		return ""
	}
	if to := g.Leader(); to != raft.ServerID(h.identity.Server) {
		return to
	}
	return ""
}

func storesValues(r *command.Request) bool {
	for i := range r.Ops {
		if r.Ops[i].Kind == command.OpSet {
			return true
		}
	}
	return false
}

// unless turns an error into indeterminate unless every attempt surely failed: the last
// one may have, an earlier one may not.
func unless(sure bool, err error) error {
	if sure {
		return err
	}
	return &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.write", Msg: "the write may have been applied", Err: err}
}

func noQuorum(op string, gid uint32, err error) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum: the group had no leader in time", Err: err,
		Hint: "see 'quorate status' for group " + utoa(gid)}
}
