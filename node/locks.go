package node

import (
	"context"
	"log/slog"
	"slices"
	"strconv"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/locks"
)

// lockService implements the part of the admin API about locks.
type lockService struct {
	host   *raftfsm.Host
	stores func() []*lock.Instance // the lock stores of this node
	log    *slog.Logger
}

// maxLeft is the maximum number of locks whose remaining lease time is shown in a list. Each shown time costs a request
// to the leader.
const maxLeft = 500

// HeldLocks implements admin.Locks.
func (s lockService) HeldLocks(ctx context.Context) ([]schema.LockStatus, error) {
	held, err := s.host.HeldLocks(ctx)
	out := make([]schema.LockStatus, len(held))
	for i := range held {
		out[i] = lockStatus(&held[i])
		if i >= maxLeft {
			continue
		}
		if left, err := s.host.LockLeft(ctx, &held[i]); err == nil {
			ms := left.Milliseconds()
			out[i].LeftMS = &ms
		}
	}
	return out, err
}

func lockStatus(l *locks.Held) schema.LockStatus {
	return schema.LockStatus{Store: l.Component, Namespace: l.Namespace, Prefix: l.Prefix, Resource: l.Resource,
		Owner: l.Owner, Revision: strconv.FormatUint(l.Token, 10), ExpiryMS: l.Expiry.Milliseconds(),
		StateStore: l.StateStore}
}

// names returns the sorted names of all known lock stores. They include the stores of the given locks, because a store
// may exist only on other nodes.
func (s lockService) names(held []locks.Held) (out []string) {
	for _, i := range s.stores() {
		out = append(out, i.Name)
	}
	for i := range held {
		out = append(out, held[i].Component)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ReleaseLock implements admin.Locks.
func (s lockService) ReleaseLock(ctx context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error) {
	const op = "node.ReleaseLock"
	held, err := s.host.HeldLocks(ctx)
	if err != nil {
		return schema.LockStatus{}, err
	}
	names := s.names(held)
	if !slices.Contains(names, r.Store) {
		return schema.LockStatus{}, &fault.Error{Code: fault.NotFound, Op: op, Key: r.Store,
			Msg:  "this node has no lock store " + strconv.Quote(fault.Shorten(r.Store, 128)),
			Hint: existing(r.Store, names, "lock stores")}
	}
	held = slices.DeleteFunc(held, func(l locks.Held) bool {
		return l.Component != r.Store || l.Resource != r.Resource || r.Prefix != nil && l.Prefix != *r.Prefix
	})
	held = withToken(held, r.Revision)
	switch {
	case len(held) == 0:
		return schema.LockStatus{}, &fault.Error{Code: fault.NotFound, Op: op, Key: r.Resource,
			Msg:  "lock store " + r.Store + " has no lock on " + strconv.Quote(r.Resource),
			Hint: "locks list shows the locks that have an owner"}
	case len(held) > 1:
		return schema.LockStatus{}, &fault.Error{Code: fault.Conflict, Op: op, Key: r.Resource,
			Msg:  strconv.Itoa(len(held)) + " locks of lock store " + r.Store + " are on " + strconv.Quote(r.Resource),
			Hint: "name one with --prefix or --token, as locks list shows it"}
	}
	l := lockStatus(&held[0])
	if r.Revision != "" && r.Revision != l.Revision {
		return schema.LockStatus{}, &fault.Error{Code: fault.Conflict, Op: op, Key: r.Resource,
			Msg: "the lock has the token " + l.Revision + ", not " + r.Revision + ": it has another owner now"}
	}
	released, err := s.host.ReleaseLock(ctx, &held[0])
	if err != nil {
		return schema.LockStatus{}, err
	}
	if !released {
		return schema.LockStatus{}, &fault.Error{Code: fault.Conflict, Op: op, Key: r.Resource,
			Msg: "the lock has got another owner in the meantime", Hint: "run the command again"}
	}
	s.log.Info("a lock was released by an operator", "store", l.Store, "prefix", l.Prefix, "resource", l.Resource,
		"owner", l.Owner, "token", l.Revision)
	return l, nil
}

// withToken selects the lock with the given token among several held locks. If the token does not identify exactly one
// of them, all are returned. There can be several locks, because applications in two namespaces may use the same lock
// name.
func withToken(held []locks.Held, token string) []locks.Held {
	var found []locks.Held
	for i := range held {
		if lockStatus(&held[i]).Revision == token {
			found = append(found, held[i])
		}
	}
	if len(held) > 1 && len(found) == 1 {
		return found
	}
	return held
}
