package api

import (
	"context"
	"strings"

	"github.com/quorate/quorate/component/state"
)

// metadataActorState is the metadata key that gives a request access to actor state. If its value is "true", keys of
// the form type||id||key refer to actor state. Tools that copy a store use this metadata key.
const metadataActorState = "actorState"

// keyspace converts the keys of a request to stored keys, and back.
type keyspace struct {
	inst   *state.Instance
	app    string
	actors bool // a key that contains the separator is actor state
}

// keyspace returns the keyspace for a request with the given metadata. It returns an error if the value of actorState
// in the metadata is not true, false or empty.
func (s *State) keyspace(inst *state.Instance, metadata map[string]string) (keyspace, *Error) {
	k := keyspace{inst: inst, app: s.app.ID}
	for name, value := range metadata {
		if !strings.EqualFold(name, metadataActorState) {
			continue
		}
		switch strings.ToLower(value) {
		case "true":
			k.actors = true
		case "", "false":
		default:
			return k, malformed("metadata.actorState must be true or false")
		}
	}
	return k, nil
}

// writable returns an error if the key belongs to actor state and the application hosts actors on this node. Only the
// actor API may then write actor state, because it checks that the actor is still active here.
func (s *State) writable(ctx context.Context, k keyspace, key string) *Error {
	if !k.isActor(key) || !k.inst.ActorStore || s.actors == nil {
		return nil
	}
	if _, _, hosts := s.actors.Epoch(ctx, s.app.ID, Actor{}); hosts {
		return malformed("the application hosts actors on this node, so their state in state store " + k.inst.Name +
			" cannot be written with metadata.actorState (stop the application first)")
	}
	return nil
}

func (k keyspace) isActor(key string) bool { return k.actors && strings.Contains(key, state.Separator) }

// check returns fault.Invalid or fault.TooLarge for a key that is not valid.
func (k keyspace) check(key string) error {
	if k.isActor(key) {
		return state.ValidateActorKey(key)
	}
	return state.ValidateKey(key)
}

// stored returns the stored key of a valid key.
func (k keyspace) stored(key string) string {
	if k.isActor(key) {
		return k.actorPrefix() + key
	}
	return k.inst.StoredKey(k.app, key)
}

// prefix converts a key prefix of the application to a prefix of stored keys, for a listing. If k.actors is true, the
// listing has only actor state.
func (k keyspace) prefix(prefix string) string {
	if k.actors {
		return k.actorPrefix() + prefix
	}
	return k.inst.StoredPrefix(k.app, prefix)
}

func (k keyspace) actorPrefix() string { return k.app + state.Separator }

// original converts the stored key of a listed item to the application's key. belongs is false if the listing must omit
// the item.
func (k keyspace) original(stored string) (key string, belongs bool) {
	if !k.actors {
		return k.inst.OriginalKey(k.app, stored)
	}
	key, ok := strings.CutPrefix(stored, k.actorPrefix())
	return key, ok && strings.Contains(key, state.Separator) && k.check(key) == nil
}
