package raftfsm

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/session"
)

// ActorDirectory records, for one application, which host owns which actor. It is stored in the Raft group that has
// the application's keys in a state store, so that a write can check the owner of an actor. It is safe for concurrent
// use.
type ActorDirectory struct {
	router *router
	scope  string
	store  string
	app    string
}

// Actors returns the directory of the actors that the application app hosts and whose state is in the given store.
func (h *Host) Actors(namespace, store, app string) *ActorDirectory {
	id := namespace + "/" + store
	return &ActorDirectory{router: h.router, scope: actorScope(id, app), store: id, app: app}
}

func actorScope(store, app string) string { return store + "\x00" + app }

func (d *ActorDirectory) actor(kind, id string) actors.Actor {
	return actors.Actor{Scope: d.scope, Type: kind, ID: id}
}

// ask sends a call to the leader of the group.
func (d *ActorDirectory) ask(ctx context.Context, what byte, rest func([]byte) []byte) (*frame, uint32, error) {
	r := d.router
	if _, err := r.node.wait(ctx); err != nil {
		return nil, 0, err
	}
	n, err := r.replica.waitPartitions(ctx)
	if err != nil {
		return nil, 0, err
	}
	gid := partitionOf(d.store, d.app+state.Separator, n)
	f, err := r.askActor(ctx, gid, rest(append(message(formFirst, gid), what)))
	return f, gid, err
}

// Register begins the session of a host. If the session exists, Register replaces the actor types and the draining
// state in its description. It returns the revision of the session, or fault.NotFound if the session with that id has
// ended.
func (d *ActorDirectory) Register(ctx context.Context, h actors.Host) (revision uint64, err error) {
	h.Scope, h.App = d.scope, d.app
	f, _, err := d.ask(ctx, actorRegister, h.Append)
	if err != nil {
		return 0, err
	}
	if revision = f.Uvarint(); f.Bad {
		return 0, errFrame(MethodActor)
	}
	return revision, nil
}

// Renew renews the session of a host. count is the number of actors that the host has. Renew returns fault.NotFound if
// the session has ended.
func (d *ActorDirectory) Renew(ctx context.Context, host string, count int) error {
	_, _, err := d.ask(ctx, actorRenew, func(b []byte) []byte {
		return binary.AppendUvarint(appendString(b, host), uint64(max(count, 0))) //nolint:gosec // not negative
	})
	return err
}

// Leave ends the session of a host.
func (d *ActorDirectory) Leave(ctx context.Context, host string) error {
	_, _, err := d.ask(ctx, actorLeave, func(b []byte) []byte { return appendString(b, host) })
	return err
}

// Activation is the answer to the request of a host for an actor.
type Activation struct {
	Owner   actors.Host
	Epoch   uint64
	Session string // token with which reads see all writes of earlier owners
}

// Activate makes host the owner of an actor, unless another host owns it, and returns the owner.
func (d *ActorDirectory) Activate(ctx context.Context, host, kind, id string) (Activation, error) {
	a := d.actor(kind, id)
	f, gid, err := d.ask(ctx, actorActivate, func(b []byte) []byte { return appendActor(appendString(b, host), &a) })
	if err != nil {
		return Activation{}, err
	}
	out := Activation{Owner: readHost(f), Epoch: f.Uvarint()}
	pos := f.position()
	if f.Bad {
		return Activation{}, errFrame(MethodActor)
	}
	seen := session.Seen{Group: gid, Pos: pos, Committed: true}
	out.Session = session.Session{seen}.Token(d.router.node.tag.Load())
	return out, nil
}

// Locate returns the host that owns an actor. If no host owns it, Locate returns the host that should activate it. The
// answer may be outdated. Locate returns fault.NotFound if no host has actors of this type.
func (d *ActorDirectory) Locate(ctx context.Context, kind, id, prefer string) (actors.Host, error) {
	a := d.actor(kind, id)
	f, _, err := d.ask(ctx, actorLocate, func(b []byte) []byte { return appendActor(appendString(b, prefer), &a) })
	if err != nil {
		return actors.Host{}, err
	}
	h := readHost(f)
	if f.Bad {
		return h, errFrame(MethodActor)
	}
	return h, nil
}

// ReleasedActor is an activation that its host gives up.
type ReleasedActor struct {
	Type, ID string
	Epoch    uint64
}

// Release removes activations. It leaves records with other epochs as they are.
func (d *ActorDirectory) Release(ctx context.Context, released []ReleasedActor) error {
	_, _, err := d.ask(ctx, actorRelease, func(b []byte) []byte { return d.appendReleased(b, released) })
	return err
}

func (d *ActorDirectory) appendReleased(b []byte, released []ReleasedActor) []byte {
	b = binary.AppendUvarint(b, uint64(len(released)))
	for i := range released {
		a := d.actor(released[i].Type, released[i].ID)
		b = binary.AppendUvarint(appendActor(b, &a), released[i].Epoch)
	}
	return b
}

// Transfer makes another host the owner of the actors in released, whose current owner gives them up. The parameter to
// is the id of the new owner's session. Transfer skips an actor whose record has another epoch. It returns
// fault.NotFound if the session of the new owner has ended, or if the new owner accepts no more actors.
func (d *ActorDirectory) Transfer(ctx context.Context, released []ReleasedActor, to string) error {
	_, _, err := d.ask(ctx, actorTransfer, func(b []byte) []byte {
		return d.appendReleased(appendString(b, to), released)
	})
	return err
}

// HostOfActors is a host that has a session.
type HostOfActors struct {
	actors.Host
	Count int // of its actors
}

// Hosts returns the hosts of the application, and how many actors they have.
func (d *ActorDirectory) Hosts(ctx context.Context) ([]HostOfActors, error) {
	f, _, err := d.ask(ctx, actorHosts, func(b []byte) []byte { return appendString(b, d.scope) })
	if err != nil {
		return nil, err
	}
	out := make([]HostOfActors, 0, f.Count())
	for range cap(out) {
		out = append(out, HostOfActors{Host: readHost(f), Count: int(f.Uvarint())}) //nolint:gosec // from a keeper
	}
	if f.Bad {
		return nil, errFrame(MethodActor)
	}
	return out, nil
}

// PlacedActor is an actor that a host owns.
type PlacedActor struct {
	Type, ID, Host string
	Epoch          uint64
}

// List calls visit for each actor of the application, ordered by type and id, until visit returns false.
func (d *ActorDirectory) List(ctx context.Context, visit func(PlacedActor) bool) error {
	n, err := d.router.replica.waitPartitions(ctx)
	if err != nil {
		return err
	}
	gid, prefix := partitionOf(d.store, d.app+state.Separator, n), actors.Activations+d.scope+"\x00"
	for after := ""; ; {
		q := query{kind: queryList, store: kv.LockStore, prefix: prefix, limit: maxPage, after: after}
		if _, err := d.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
			return err
		}
		more := q.more && len(q.listed) > 0
		keys := make([]string, len(q.listed))
		for i := range q.listed {
			keys[i], after = q.listed[i].Key, q.listed[i].Key
		}
		values := query{kind: queryMany, store: kv.LockStore, keys: keys}
		if len(keys) > 0 {
			if _, err := d.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &values); err != nil {
				return err
			}
		}
		for i := range values.values {
			a, there, err := actors.ParseActivation(values.values[i])
			if err != nil {
				return err
			}
			actor, ok := actors.ParseKey(keys[i])
			if ok && there && !visit(PlacedActor{actor.Type, actor.ID, a.Host, a.Epoch}) {
				return nil
			}
		}
		if !more {
			return nil
		}
	}
}

// errActorMoved returns the error of a write that names an activation that has ended.
func errActorMoved() error {
	return &fault.Error{Code: fault.ActorMoved, Op: "raftfsm.write",
		Msg:  "the actor has another owner by now, or the session of its host has ended; nothing was written",
		Hint: "the actor goes on at its new owner: do not repeat the write"}
}
