package raftfsm

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/records"
	"github.com/quorate/quorate/raftfsm/session"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// recordGroup implements records.Group, the interface through which the keepers of locks, due work, topics and
// workflows use their group.
type recordGroup struct{ *group.Group }

// Commit implements records.Group.
func (g recordGroup) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	a, err := g.ProposeRequest(ctx, r, group.Committed)
	return a.Result, err
}

// Confirm implements records.Group.
func (g recordGroup) Confirm(ctx context.Context) error {
	ri, err := g.ReadIndex(ctx)
	if err != nil {
		return err
	}
	return g.WaitApplied(ctx, ri.Index)
}

// actorGroup implements actors.Group, the interface through which the keeper of actors uses its group.
type actorGroup struct{ *group.Group }

// Commit implements actors.Group.
func (g actorGroup) Commit(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	a, err := g.ProposeRequest(ctx, r, group.Committed)
	return a.Result, a.Position, err
}

// Confirm implements actors.Group.
func (g actorGroup) Confirm(ctx context.Context) (raftlog.Position, error) {
	ri, err := g.ReadIndex(ctx)
	return ri.Position, err
}

var (
	_ records.Group    = recordGroup{}
	_ actors.Group     = actorGroup{}
	_ records.Access   = access{}
	_ workflows.Sender = flowSender{}
)

// flowSender sends messages between workflows in different groups.
type flowSender struct{ server *server }

// Locate implements workflows.Sender.
func (f flowSender) Locate(_ context.Context, r workflows.Ref) (uint32, error) {
	return workflows.PartitionOf(r.Prefix(), f.server.partitions()), nil
}

// Ask implements workflows.Sender. The caller repeats a call that has failed.
func (f flowSender) Ask(ctx context.Context, gid uint32, method string, body []byte) (answer []byte, repeated bool,
	err error) {
	answer, err = f.server.ask(ctx, gid, method, append(peercalls.Message(gid), body...))
	return answer, false, err
}

// access implements records.Access.
type access struct{ *router }

// Locate implements records.Access.
func (a access) Locate(ctx context.Context, store, prefix string) (uint32, error) {
	if _, err := a.node.wait(ctx); err != nil {
		return 0, err
	}
	n, err := a.replica.waitPartitions(ctx)
	if err != nil {
		return 0, err
	}
	return partitionOf(store, prefix, n), nil
}

// Groups implements records.Access.
func (a access) Groups(ctx context.Context) (uint32, error) { return a.replica.waitPartitions(ctx) }

// Values implements records.Access.
func (a access) Values(ctx context.Context, gid uint32, store string, keys []string) ([]kv.Value, error) {
	q := query{kind: queryMany, store: store, keys: keys}
	_, err := a.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q)
	return q.values, err
}

// List implements records.Access.
func (a access) List(ctx context.Context, gid uint32, store string, p records.Page) (keys []string, more bool,
	err error) {
	q := query{kind: queryList, store: store, prefix: p.Prefix, after: p.After, limit: p.Limit}
	if _, err := a.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
		return nil, false, err
	}
	keys = make([]string, len(q.listed))
	for i := range q.listed {
		keys[i] = q.listed[i].Key
	}
	return keys, q.more && len(keys) > 0, nil
}

// Write implements records.Access.
func (a access) Write(ctx context.Context, gid uint32, r *command.Request) (kv.Result, error) {
	written, err := a.write(ctx, gid, r, group.Committed)
	return written.Result, err
}

// Ask implements records.Access.
func (a access) Ask(ctx context.Context, gid uint32, method string, body []byte) (answer []byte, repeated bool,
	err error) {
	if err := a.node.allowed(); err != nil {
		return nil, false, err
	}
	b := append(peercalls.Message(gid), body...)
	for {
		answer, err := a.replica.ask(ctx, gid, method, b)
		if err == nil {
			return answer, repeated, nil
		}
		repeated = repeated || fault.Is(err, fault.Indeterminate)
		if !a.retry.again(ctx, a.replica, gid, err) {
			if ctx.Err() != nil && fault.Is(err, fault.NotLeader) {
				err = noQuorum(method, a.replica, gid, err)
			}
			return nil, repeated, err
		}
	}
}

// WithID implements records.Access.
func (a access) WithID(ctx context.Context, gid uint32, f func(command.RequestID) (known bool, err error)) error {
	o := a.group(gid).origin
	for {
		id, err := o.begin(ctx)
		if err != nil {
			return err
		}
		known, err := f(id)
		o.end(id)
		if known {
			return err
		}
		o.drop(id.Origin) // the group may no longer know the origin
	}
}

// Token implements records.Access.
func (a access) Token(gid uint32, at raftlog.Position) string {
	seen := session.Seen{Group: gid, Pos: at, Committed: true}
	return session.Session{seen}.Token(a.node.tag.Load())
}

// storeAccess implements records.Access for the locks of a Store. After the Store is closed, Locate returns an error.
type storeAccess struct {
	access
	store *Store
}

// Locate implements records.Access.
func (a storeAccess) Locate(ctx context.Context, store, prefix string) (uint32, error) {
	if err := a.store.enter(ctx, "raftfsm.lock"); err != nil {
		return 0, err
	}
	return a.access.Locate(ctx, store, prefix)
}

// Locks returns the lock store of a component. The locks are stored in the same groups as the data of s (see
// locks.NewStore).
func (s *Store) Locks(component string, reentrant bool) *locks.Store {
	return locks.NewStore(storeAccess{access{s.router}, s}, s.id, component, reentrant)
}

// HeldLocks returns every lock that has an owner. See locks.List.
func (h *Host) HeldLocks(ctx context.Context) ([]locks.Held, error) {
	return locks.List(ctx, access{h.router})
}

// LockLeft returns how long a lock that HeldLocks has returned stays valid. See locks.Left.
func (h *Host) LockLeft(ctx context.Context, l *locks.Held) (time.Duration, error) {
	return locks.Left(ctx, access{h.router}, l)
}

// ReleaseLock ends a lock that HeldLocks has returned, whoever owns it. See locks.End.
func (h *Host) ReleaseLock(ctx context.Context, l *locks.Held) (released bool, err error) {
	return locks.End(ctx, access{h.router}, l)
}

// Actors returns the actor directory of the application app. It is for actors whose state is in the given store.
func (h *Host) Actors(namespace, store, app string) *actors.Directory {
	return actors.NewDirectory(access{h.router}, namespace+"/"+store, app)
}

// DueWork returns a client for the due work of the cluster: jobs, reminders and other work that is due at a given time.
func (h *Host) DueWork() due.Client {
	var keepers []*due.Keeper
	if s, ok := h.replica.(*server); ok {
		keepers = s.due
	}
	return due.NewClient(access{h.router}, keepers)
}

// Broker returns the broker of a publish/subscribe component. The broker stores its topics in the groups of the
// cluster.
func (h *Host) Broker(namespace, name string, o topics.BrokerOptions) *topics.Broker {
	return topics.NewBroker(access{h.router}, namespace+"/"+name, o)
}

// Topics returns the Admin of a publish/subscribe component, with which operators see and change its topics.
func (h *Host) Topics(namespace, name string) *topics.Admin {
	return topics.NewAdmin(access{h.router}, namespace+"/"+name)
}

// Workflows returns the engine of workflows. The engine stores workflow instances in the groups of the cluster.
func (h *Host) Workflows(o workflows.BrokerOptions) *workflows.Broker {
	return workflows.NewBroker(access{h.router}, o)
}

// errActorMoved returns the error for a refused write of an actor. The actor has another owner now, or the session of
// its host has ended.
func errActorMoved() error {
	return &fault.Error{Code: fault.ActorMoved, Op: "raftfsm.write",
		Msg:  "the actor has another owner by now, or the session of its host has ended; nothing was written",
		Hint: "the actor goes on at its new owner: do not repeat the write"}
}
