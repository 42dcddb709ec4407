package api

import (
	"context"

	"github.com/quorate/quorate/component/state"
)

// Actor names one actor of the application.
type Actor struct{ Type, ID string }

// ActorHosts knows which actors are active on this node. State uses it for requests about actor state. Implementations
// are safe for concurrent use.
type ActorHosts interface {
	// Epoch returns the epoch that each write of an active actor must carry as a condition, and the session token for
	// its requests. e is nil if the actor is not active. hosts is false if the application has registered no types of
	// actors. While the application registers its types, Epoch waits for a limited time.
	Epoch(ctx context.Context, app string, a Actor) (e *state.ActorEpoch, token string, hosts bool)
	// Wrote is called after a write that carried epoch. token is the session token of what the answer of the
	// store has shown; empty = nothing. If moved is true, the write failed because another host owns the actor.
	Wrote(app string, a Actor, epoch uint64, token string, moved bool)
}

// Host sets h as the source of the actors that are active on this node, and returns s. It must be called before the
// first request.
func (s *State) Host(h ActorHosts) *State {
	s.actors = h
	return s
}

// activation holds the epoch and the session token of an actor. Each write of the actor's state has the epoch as a
// condition. If the actor is not active on this node, the epoch is nil.
type activation struct {
	epoch *state.ActorEpoch
	token string
}

// activation returns the epoch and the session token of an actor on this node. missing is true if the application hosts
// actors on this node, but this actor is not active here.
func (s *State) activation(ctx context.Context, a Actor) (active activation, missing bool) {
	if s.actors == nil {
		return activation{}, false
	}
	e, token, hosts := s.actors.Epoch(ctx, s.app.ID, a)
	return activation{e, token}, hosts && e == nil
}

// ActorGetRequest reads one key of an actor.
type ActorGetRequest struct {
	Actor
	Key string
	ReadOptions
}

// ActorTransactRequest applies either all operations or none to the state of one actor.
type ActorTransactRequest struct {
	Actor
	Operations []Operation
	WriteOptions
}

// CheckActors returns an error if this node cannot serve actor state, for example because no state store is configured
// for actors. The HTTP and gRPC servers call CheckActors before they decode a request body.
func (s *State) CheckActors() error {
	if _, err := s.actorStore(); err != nil {
		return err
	}
	return nil
}

// ActorGet reads one key of an actor from the actor state store. If the actor may be active on another node, ActorGet
// makes a strong read, so that it sees the writes of that node.
func (s *State) ActorGet(ctx context.Context, r ActorGetRequest) (state.Item, error) {
	inst, failure := s.actorStore()
	if failure != nil {
		return state.Item{}, failure
	}
	if err := state.ValidateActor(r.Type, r.ID); err != nil {
		return state.Item{}, invalid("", err)
	}
	if err := state.ValidateKey(r.Key); err != nil {
		return state.Item{}, illegalKey(inst.Name, "key", "", err)
	}
	active, missing := s.activation(ctx, r.Actor)
	switch {
	case missing:
		r.Consistency = state.Strong
	case active.token != "":
		if r.Session != "" { // a read carries only one token; a strong read satisfies both
			r.Consistency = state.Strong
		} else {
			r.Session = active.token
		}
	}
	v := s.enter(r.Trace, &r.Session)
	options, failure := readOptions(inst, r.ReadOptions)
	if failure != nil {
		return state.Item{}, failure
	}
	if missing {
		options.MaxStaleness = 0 // the bound applies to eventual reads only
	}
	key := state.ActorKey(s.app.ID, r.Type, r.ID, r.Key)
	start := s.seen.begin()
	item, err := inst.Store.Get(ctx, state.GetRequest{Key: key, ReadOptions: options})
	if err == nil && active.token != "" && item.Level == state.Stale {
		// The replica of this node lacks writes of this activation. A turn that reads an old state could overwrite a
		// newer one.
		options.Consistency = state.Strong
		item, err = inst.Store.Get(ctx, state.GetRequest{Key: key, ReadOptions: options})
	}
	s.seen.state(inst.Name, observedGet, start, err)
	if err != nil {
		return state.Item{}, opActorGet.failed(err, inst.Name, r.Key, "")
	}
	v.leave(&item.Proof)
	item.Key = r.Key
	return item, nil
}

// ActorTransact applies either all operations or none to the state of one actor. If the application hosts actors on
// this node but this actor is not active here, the error has the code CodeActorInstanceMissing.
func (s *State) ActorTransact(ctx context.Context, r ActorTransactRequest) (state.Written, error) {
	inst, failure := s.actorStore()
	if failure != nil {
		return state.Written{}, failure
	}
	if err := state.ValidateActor(r.Type, r.ID); err != nil {
		return state.Written{}, invalid("", err)
	}
	t := transaction{state: s, inst: inst, op: opActorTransact, limit: s.limits.Operations,
		storedKey: func(key string) string {
			return state.ActorKey(s.app.ID, r.Type, r.ID, key)
		}}
	active, missing := s.activation(ctx, r.Actor)
	if missing {
		return state.Written{}, &Error{Kind: Malformed, Code: CodeActorInstanceMissing,
			Message: "actor instance is missing: the actor " + Shorten(r.Type) + "/" + Shorten(r.ID) +
				" is not active on this node (write its state only while it handles a call)",
			Details: Details{Reason: ReasonNotFound}}
	}
	if active.epoch == nil {
		return t.run(ctx, TransactRequest{Operations: r.Operations, WriteOptions: r.WriteOptions})
	}
	t.actor = active.epoch
	if r.Session == "" {
		r.Session = active.token
	}
	written, err := t.run(ctx, TransactRequest{Operations: r.Operations, WriteOptions: r.WriteOptions})
	moved := err != nil && AsError(err).Kind == ActorMoved
	s.actors.Wrote(s.app.ID, r.Actor, active.epoch.Epoch, t.shown, moved)
	return written, err
}

func (s *State) actorStore() (*state.Instance, *Error) {
	if inst, ok := s.stores.ActorStore(); ok {
		return inst, nil
	}
	if !s.stores.Loaded() {
		return nil, storesStarting("")
	}
	return nil, noActorStore()
}
