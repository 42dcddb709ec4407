package api

import (
	"context"

	"github.com/quorate/quorate/component/state"
)

// Actor names one actor of the application.
type Actor struct{ Type, ID string }

// ActorGetRequest reads one key of an actor.
type ActorGetRequest struct {
	Actor
	Key string
	ReadOptions
}

// ActorTransactRequest applies all operations to the state of one actor, or none.
type ActorTransactRequest struct {
	Actor
	Operations []Operation
	WriteOptions
}

// CheckActors returns an error if actor state cannot be served at all. The HTTP and gRPC servers call it before they
// decode a body.
func (s *State) CheckActors() error {
	if _, err := s.actorStore(); err != nil {
		return err
	}
	return nil
}

// ActorGet reads one key of an actor from the actor state store.
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
	v := s.enter(r.Trace, &r.Session)
	options, failure := readOptions(inst, r.ReadOptions)
	if failure != nil {
		return state.Item{}, failure
	}
	key := state.ActorKey(s.app.ID, r.Type, r.ID, r.Key)
	item, err := inst.Store.Get(ctx, state.GetRequest{Key: key, ReadOptions: options})
	if err != nil {
		return state.Item{}, opActorGet.failed(err, inst.Name, r.Key, "")
	}
	v.leave(&item.Proof)
	item.Key = r.Key
	return item, nil
}

// ActorTransact applies operations to the state of one actor atomically.
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
	return t.run(ctx, TransactRequest{Operations: r.Operations, WriteOptions: r.WriteOptions})
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
