package api_test

import (
	"context"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

// active is an ActorHosts whose actors are all active.
type active struct{}

func (active) Epoch(context.Context, string, api.Actor) (*state.ActorEpoch, string, bool) {
	return &state.ActorEpoch{Epoch: 1}, "token", true
}
func (active) Wrote(string, api.Actor, uint64, string, bool) {}

// behind is a store whose replica is behind: only strong reads see the newest value.
type behind struct{ state.Store }

func (s behind) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if r.Consistency == state.Strong {
		return s.Store.Get(ctx, r)
	}
	item := state.Item{Value: []byte("0"), ETag: "1"}
	item.Level = state.Stale
	return item, nil
}

// A read of an active actor is never stale, because the actor could otherwise overwrite a newer value.
func TestActorGet_IsNeverStale(t *testing.T) {
	t.Parallel()
	store := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { _ = store.Close() })
	s := service(behind{store}, api.Limits{}, func(i *state.Instance) { i.ActorStore = true })
	if err := save(t, s, actorState, "Cart||1||n"); err != nil {
		t.Fatal(err)
	}
	r := api.ActorGetRequest{Actor: api.Actor{Type: "Cart", ID: "1"}, Key: "n"}
	item, err := s.ActorGet(t.Context(), r)
	if err != nil || item.Level != state.Stale {
		t.Errorf("an application without actors reads %+v, %v", item, err)
	}
	item, err = s.Host(active{}).ActorGet(t.Context(), r)
	if err != nil || string(item.Value) != "1" || item.Level == state.Stale {
		t.Errorf("an active actor reads %+v, %v", item, err)
	}
}
