package api_test

import (
	"context"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

// seeing is a store whose answers show a letter of the session (see letters).
type seeing struct {
	*inmemory.Store
	letter string
}

func (s seeing) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	item, err := s.Store.Get(ctx, r)
	item.Session = r.Session + s.letter
	return item, err
}

func (s seeing) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	written, err := s.Store.Transact(ctx, r)
	written.Session = r.Session + s.letter
	return written, err
}

// newSeeing returns a service over a store whose answers show the letter n, and the sessions of its application.
func newSeeing(t *testing.T) (*api.State, *api.Sessions) {
	t.Helper()
	store := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { _ = store.Close() })
	sessions := api.NewSessions(letters{})
	adapt := func(i *state.Instance) { i.ActorStore = true }
	return service(seeing{store, "n"}, api.Limits{}, adapt).Remember(api.App{ID: "shop"}, sessions), sessions
}

// A client replaces its token with that of the watch, so the token of the watch has the positions of the client.
func TestWatch_KeepsSessionOfClient(t *testing.T) {
	t.Parallel()
	s, _ := newSeeing(t)
	for given, want := range map[string]string{"": "n", "w": "wn", "?": "n"} {
		w, err := s.Watch(t.Context(), api.WatchRequest{Store: "orders", Prefix: "k", Session: given})
		if err != nil {
			t.Fatal(err)
		}
		if w.Close(nil); w.Session != want {
			t.Errorf("the client sends %q and gets %q, want %q", given, w.Session, want)
		}
	}
}

// noting is an ActorHosts that records the session tokens of writes.
type noting struct {
	active
	tokens []string
}

func (n *noting) Wrote(_ string, _ api.Actor, _ uint64, token string, _ bool) {
	n.tokens = append(n.tokens, token)
}

// The session of the application may have the position of a lost write, which this node cannot confirm. An activation
// must not keep that position, because only writes change the token of an activation.
func TestActorTransact_ActivationKeepsOnlyConfirmedPositions(t *testing.T) {
	t.Parallel()
	s, sessions := newSeeing(t)
	sessions.Inbound(api.App{ID: "shop"}, "", "!")
	hosts := &noting{}
	_, err := s.Host(hosts).ActorTransact(t.Context(), api.ActorTransactRequest{
		Actor: api.Actor{Type: "Cart", ID: "1"}, Operations: []api.Operation{upsert("k", state.Strong)},
		WriteOptions: api.WriteOptions{Session: "w"}})
	if err != nil || len(hosts.tokens) != 1 || hosts.tokens[0] != "wn" {
		t.Errorf("the activation keeps %q, want wn: %v", hosts.tokens, err)
	}
}
