package raftfsm

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// write puts one request into the log of a group exactly once, and retries until ctx ends. It returns the position
// and the result of the request.
//
// With Ack Durable, the result contains no outcome, because the request is not applied yet. write uses Durable only
// if the group certainly knows the origin of the request (see origin.prove and outcomeKnown). Otherwise it uses
// Committed.
func (r *router) write(ctx context.Context, gid uint32, req *command.Request, ack group.Ack) (group.Answer, error) {
	return r.writeAfter(ctx, gid, req, ack, 0)
}

// writeAfter works like write, for a request whose session has seen the given term of the group.
func (r *router) writeAfter(ctx context.Context, gid uint32, req *command.Request, ack group.Ack,
	term uint64) (group.Answer, error) {
	if err := r.node.allowed(); err != nil {
		return group.Answer{}, err
	}
	o := r.group(gid).origin
	for {
		id, err := o.begin(ctx)
		if fault.Is(err, fault.Timeout) && r.replica.ready(gid) != nil {
			err = noQuorum("raftfsm.write", r.replica, gid, err)
		}
		if err != nil {
			return group.Answer{}, err
		}
		if !o.isProven() {
			ack = group.Committed
		}
		req.ID = id
		a, sure, err := r.send(ctx, gid, req, ack, term)
		o.end(id)
		switch {
		case err != nil || a.Result.Outcome == 0:
			return a, err
		case a.Result.Outcome != kv.Stale:
			o.prove(id.Origin)
			return a, nil
		case !sure:
			return a, fault.New(fault.Indeterminate, "raftfsm.write",
				"the write may have been applied: its result is no longer kept")
		}
		// The group does not know this origin, or no longer keeps its results.
		o.drop(id.Origin)
		r.metrics.retries.WithLabelValues(causeOrigin).Inc()
	}
}

// send sends a request until its outcome is known or ctx ends. Every attempt has the same request id. The result sure
// is false if an attempt has failed with an unknown outcome. The request may then have been applied by that attempt.
//
// A deposed leader that does not know about its successor can still accept a request with Ack Durable. send detects
// this if term, or the newest term that this node has seen, is above the term of that leader. It then repeats the
// request with Committed, because the request may be lost, and no read would report the loss: the session may already
// have a position of the later leader with a greater index.
func (r *router) send(ctx context.Context, gid uint32, req *command.Request, ack group.Ack,
	term uint64) (a group.Answer, sure bool, err error) {
	data, err := command.EncodeRequest(req, MaxRequest)
	if err != nil {
		return a, true, err
	}
	values := storesValues(req)
	for sure = true; ; {
		a, err = r.replica.propose(ctx, gid, data, ack, values)
		switch {
		case err == nil && a.Result.Outcome == 0 && a.Term < max(term, r.group(gid).term.Load()):
			sure, ack = false, group.Committed
			continue
		case err == nil:
			return a, sure, nil
		}
		if fault.Is(err, fault.Indeterminate) {
			// A retry may return the stored result of the first attempt, or a refusal.
			sure, ack = false, group.Committed
		}
		if !r.retry.again(ctx, r.replica, gid, err) {
			break
		}
	}
	if ctx.Err() != nil && (fault.Is(err, fault.NotLeader) || fault.Is(err, fault.Unavailable)) {
		err = noQuorum("raftfsm.write", r.replica, gid, err)
	}
	if !sure && !fault.Is(err, fault.Indeterminate) {
		// This attempt certainly failed, but an earlier one may have succeeded.
		err = &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.write", Msg: "the write may have been applied",
			Err: err}
	}
	return a, sure, err
}

// storesValues reports whether a request stores values. A read-only group, whose disks are nearly full, refuses such
// requests. Locks and the tombstones of removed servers do not count as values, because they are small. An operator
// must be able to remove a server even if the disk is full.
func storesValues(r *command.Request) bool {
	for i := range r.Ops {
		if r.Ops[i].Stores() && r.Ops[i].Store != systemStore &&
			r.Ops[i].Store != kv.LockStore {
			return true
		}
	}
	return false
}

// noQuorum returns the error of a call that found no leader in time. Its cause is the reason why the group is not
// ready. If the group has become ready in the meantime, its cause is err, the error of the last attempt.
func noQuorum(op string, rep replica, gid uint32, err error) error {
	if why := rep.ready(gid); why != nil {
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum", Err: why}
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum: the group had no leader in time", Err: err,
		Hint: "see 'quorate status' for group " + utoa(gid)}
}
