package api_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

var actorState = map[string]string{"actorState": "true"}

// hosting is an ActorHosts of an application that hosts actors, none of which is active.
type hosting struct{}

func (hosting) Epoch(context.Context, string, api.Actor) (*state.ActorEpoch, string, bool) {
	return nil, "", true
}
func (hosting) Wrote(string, api.Actor, uint64, string, bool) {}

func save(t *testing.T, s *api.State, metadata map[string]string, keys ...string) error {
	t.Helper()
	var items []api.Item
	for _, k := range keys {
		items = append(items, api.Item{Key: k, Value: []byte("1"), JSON: true})
	}
	_, err := s.Save(t.Context(), api.SaveRequest{Store: "orders", Items: items,
		WriteOptions: api.WriteOptions{Metadata: metadata}})
	return err
}

func TestActorState_CanBeListedReadAndWrittenAsKeys(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"appid", "name", "none"} {
		store := inmemory.Open(inmemory.Options{})
		t.Cleanup(func() { _ = store.Close() })
		s := service(store, api.Limits{}, func(i *state.Instance) {
			i.KeyPrefix, _ = state.ParseKeyPrefix(prefix)
			i.ActorStore = true
		})
		actors := []string{"Cart||1||items", "Cart||2||items", "Zoo||a/b||k"}
		if err := save(t, s, actorState, append(actors, "k", "plain")...); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{0, 1, 2} {
			list := api.ListRequest{Store: "orders", Limit: limit, ReadOptions: api.ReadOptions{Metadata: actorState}}
			if diff := cmp.Diff(actors, everyPage(t, s, list)); diff != "" {
				t.Errorf("%s, limit %d: %s", prefix, limit, diff)
			}
		}
		item, err := s.ActorGet(t.Context(), api.ActorGetRequest{Actor: api.Actor{Type: "Cart", ID: "2"}, Key: "items"})
		if err != nil || string(item.Value) != "1" {
			t.Errorf("%s: the actor reads %+v, %v", prefix, item, err)
		}
		bulk, err := s.BulkGet(t.Context(), api.BulkGetRequest{Store: "orders", Keys: append(actors, "plain"),
			ReadOptions: api.ReadOptions{Metadata: actorState}})
		if err != nil || len(bulk.Items) != 4 || !bulk.Items[2].Found() || !bulk.Items[3].Found() {
			t.Errorf("%s: %+v, %v", prefix, bulk, err)
		}
		if _, err := s.Delete(t.Context(), api.DeleteRequest{Store: "orders", Key: actors[0],
			WriteOptions: api.WriteOptions{Metadata: actorState}}); err != nil {
			t.Error(err)
		}
		item, err = s.Get(t.Context(), api.GetRequest{Store: "orders", Key: actors[0],
			ReadOptions: api.ReadOptions{Metadata: actorState}})
		if err != nil || item.Found() {
			t.Errorf("%s: deleted, and found: %+v, %v", prefix, item, err)
		}
	}
}

func TestActorState_IsGuarded(t *testing.T) {
	t.Parallel()
	own := func(i *state.Instance) { i.ActorStore = true }
	s, _ := newSpied(t, api.Limits{}, own)
	for _, c := range []struct {
		metadata map[string]string
		key      string
	}{
		{nil, "Cart||1||k"}, {map[string]string{"actorState": "false"}, "Cart||1||k"},
		{map[string]string{"actorState": "maybe"}, "k"}, {actorState, "Cart||1"}, {actorState, "Cart||1||k||x"},
		{actorState, "Cart||||k"},
	} {
		if code := codeOf(t, save(t, s, c.metadata, c.key)); code != api.CodeMalformed {
			t.Errorf("%v of %s: %s", c.metadata, c.key, code)
		}
	}
	s.Host(hosting{})
	if code := codeOf(t, save(t, s, actorState, "Cart||1||k")); code != api.CodeMalformed {
		t.Errorf("state of actors on this node: %s", code)
	}
	if err := save(t, s, actorState, "k"); err != nil {
		t.Errorf("a key of the application: %v", err)
	}
	other, _ := newSpied(t, api.Limits{}, nil)
	if err := save(t, other.Host(hosting{}), actorState, "Cart||1||k"); err != nil {
		t.Errorf("another store than that of the actors: %v", err)
	}
}
