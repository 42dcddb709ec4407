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
// be tried before ctx ends. It returns the position, and the result unless the answer was
// given for durability alone; then the result's outcome is zero.
//
// An answer for durability is given before the outcome is known, so it is asked for only
// while the outcome cannot be "unknown origin": the origin was answered before, and the
// leader knows that none is about to be forgotten (see servePropose).
func (h *Host) write(ctx context.Context, gid uint32, r *command.Request, ack group.Ack) (group.Answer, error) {
	if err := h.allowed(); err != nil {
		return group.Answer{}, err
	}
	o := h.origins[gid]
	for {
		id, err := o.begin(ctx)
		if err != nil {
			return group.Answer{}, err
		}
		if !o.isProven() {
			ack = group.Committed
		}
		r.ID = id
		a, sure, err := h.send(ctx, gid, r, ack)
		o.end(id)
		switch {
		case err != nil || a.Result.Outcome == 0:
			return a, err
		case a.Result.Outcome != kv.Stale:
			o.prove(id.Origin)
			return a, nil
		case !sure:
			return a, fault.New(fault.Indeterminate, "raftfsm.write", "the write may have been applied: its result is no longer kept")
		}
		// The group does not know this origin, or no longer keeps its results.
		o.drop(id.Origin)
		h.metrics.retries.WithLabelValues(causeOrigin).Inc()
	}
}

// send tries a request with one id until its outcome is known or ctx ends. sure is false
// once an attempt ended without a known outcome.
func (h *Host) send(ctx context.Context, gid uint32, r *command.Request, ack group.Ack) (a group.Answer, sure bool, err error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return a, true, err
	}
	values := storesValues(r)
	for sure = true; ; {
		a, err = h.propose(ctx, gid, data, ack, values)
		if err == nil {
			return a, sure, nil
		}
		if fault.Is(err, fault.Indeterminate) {
			// What a retry gets may be the memory of the first attempt, or a refusal.
			sure, ack = false, group.Committed
		}
		if !h.again(ctx, gid, err) {
			break
		}
	}
	if ctx.Err() != nil && (fault.Is(err, fault.NotLeader) || fault.Is(err, fault.Unavailable)) {
		err = noQuorum("raftfsm.write", gid, err)
	}
	if !sure && !fault.Is(err, fault.Indeterminate) {
		// This attempt surely failed, an earlier one may not have.
		err = &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.write", Msg: "the write may have been applied", Err: err}
	}
	return a, sure, err
}

// again reports whether a call that failed with err is worth another try, after a pause
// in which the leadership may have changed.
func (h *Host) again(ctx context.Context, gid uint32, err error) bool {
	code := fault.CodeOf(err)
	switch code {
	case fault.NotLeader, fault.Indeterminate, fault.Unavailable:
	default:
		return false
	}
	if ctx.Err() != nil || h.closing() {
		return false
	}
	h.metrics.retries.WithLabelValues(string(code)).Inc()
	h.waitChange(ctx, gid)
	return ctx.Err() == nil && !h.closing()
}

// closing reports whether Close has begun.
func (h *Host) closing() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}

// waitChange waits until another server may lead a group, or retryPause has passed.
func (h *Host) waitChange(ctx context.Context, gid uint32) {
	if h.scout != nil {
		h.scout.waitChange(ctx, retryPause)
		return
	}
	h.groups[gid].WaitChange(ctx, retryPause)
}

// propose hands an encoded request to the leader: here, or one hop away.
func (h *Host) propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack, values bool) (group.Answer, error) {
	if to, away := h.elsewhere(gid); away {
		return h.remotePropose(ctx, to, gid, data, ack, values)
	}
	if values {
		if err := h.WritesAllowed(); err != nil {
			return group.Answer{}, err
		}
	}
	g := h.groups[gid]
	return g.Propose(ctx, data, outcomeKnown(g, ack))
}

// outcomeKnown turns an answer for durability into one for the outcome while an origin of
// the group is about to be forgotten: an entry that forgets it may be on its way. Entries
// on their way carry no later time than now.
func outcomeKnown(g *group.Group, ack group.Ack) group.Ack {
	if ack == group.Durable && g.Machine().OriginDue() <= g.Now() {
		return group.Committed
	}
	return ack
}

// elsewhere reports whether a group is led by another server than this one, and by which.
// The server is empty on a node without replicas that knows of no leader.
func (h *Host) elsewhere(gid uint32) (leader raft.ServerID, away bool) {
	if h.scout != nil {
		return h.scout.leader(gid), true
	}
	if h.opts.Peers == nil {
		return "", false
	}
	to := h.groups[gid].Leader()
	return to, to != "" && to != raft.ServerID(h.self.Server)
}

// storesValues reports whether a request needs room on the disk. Marks of our own are few
// and must be possible on a full one.
func storesValues(r *command.Request) bool {
	for i := range r.Ops {
		if r.Ops[i].Kind == command.OpSet && r.Ops[i].Store != systemStore {
			return true
		}
	}
	return false
}

func noQuorum(op string, gid uint32, err error) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum: the group had no leader in time", Err: err,
		Hint: "see 'quorate status' for group " + utoa(gid)}
}
