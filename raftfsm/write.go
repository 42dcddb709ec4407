package raftfsm

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// write proposes a request to a group and retries until ctx ends. The group applies the request at most once. write
// returns the position and the result of the request.
//
// With the acknowledgement Durable, the result contains no outcome, because the request is not applied yet. If the
// group may not know the origin of the request, write uses Committed instead (see origin.prove and outcomeKnown).
func (r *router) write(ctx context.Context, gid uint32, req *command.Request, ack group.Ack) (group.Answer, error) {
	return r.writeAfter(ctx, gid, req, ack, 0)
}

// writeAfter works like write. The parameter term is the newest term of the group that the session of the request has
// seen.
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

// send proposes a request until its outcome is known or ctx ends. Every attempt has the same request id. sure is false
// if an attempt with an unknown outcome may have succeeded.
//
// With the acknowledgement Durable, a deposed leader can still accept a request, which may then be lost. A read might
// not report this loss if the session already has a greater position of the new leader. Therefore send repeats the
// request with Committed if the answer is from an earlier term than the session or this node has seen. The parameter
// term is the newest term that the session has seen.
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
// requests.
//
// Locks and the tombstones of removed servers do not count as values, because they are small. An operator must be able
// to remove a server even if the disk is full.
func storesValues(r *command.Request) bool {
	for i := range r.Ops {
		if r.Ops[i].Stores() && r.Ops[i].Store != systemStore &&
			r.Ops[i].Store != kv.LockStore {
			return true
		}
	}
	return false
}

// noQuorum returns the error of a call that found no leader in time. It wraps the reason why the group is not ready. If
// the group is ready by now, it wraps the given error of the last attempt instead.
func noQuorum(op string, rep replica, gid uint32, err error) error {
	if why := rep.ready(gid); why != nil {
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum", Err: why}
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no quorum: the group had no leader in time", Err: err,
		Hint: "see 'quorate status' for group " + utoa(gid)}
}
