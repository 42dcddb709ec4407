package api_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

// spy is a store that records its requests.
type spy struct {
	state.Store
	mu       sync.Mutex
	get      state.GetRequest
	set      state.SetRequest
	delete   state.DeleteRequest
	transact state.TransactRequest
	bulk     state.BulkGetRequest
	list     state.ListRequest
	calls    int
}

func (s *spy) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	f()
}

func (s *spy) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	s.note(func() { s.get = r })
	return s.Store.Get(ctx, r)
}

func (s *spy) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	s.note(func() { s.set = r })
	return s.Store.Set(ctx, r)
}

func (s *spy) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	s.note(func() { s.delete = r })
	return s.Store.Delete(ctx, r)
}

func (s *spy) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	s.note(func() { s.transact = r })
	return state.AbilitiesOf(s.Store).Transactor.Transact(ctx, r)
}

func (s *spy) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	s.note(func() { s.bulk = r })
	return state.AbilitiesOf(s.Store).BulkGetter.BulkGet(ctx, r)
}

func (s *spy) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	s.note(func() { s.list = r })
	return state.AbilitiesOf(s.Store).Lister.List(ctx, r)
}

// one is a StateStores with one store, which is also the actor state store.
type one struct{ inst *state.Instance }

func (o one) StateStore(name string) (*state.Instance, bool) { return o.inst, name == o.inst.Name }
func (o one) StateStores() []*state.Instance                 { return []*state.Instance{o.inst} }
func (o one) ActorStore() (*state.Instance, bool)            { return o.inst, true }
func (o one) Loaded() bool                                   { return true }

// newSpied returns a service over an in-memory store, and the spy that records its requests.
func newSpied(t testing.TB, limits api.Limits, adapt func(*state.Instance)) (*api.State, *spy) {
	t.Helper()
	store := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { _ = store.Close() })
	s := &spy{Store: store}
	return service(s, limits, adapt), s
}

func service(store state.Store, limits api.Limits, adapt func(*state.Instance)) *api.State {
	inst := &state.Instance{Name: "orders", Type: "state.in-memory", Store: store, DefaultConsistency: state.Eventual}
	if adapt != nil {
		adapt(inst)
	}
	return api.NewState(api.App{ID: "shop"}, one{inst}, limits)
}

// codeOf returns the public code of an error.
func codeOf(t testing.TB, err error) string {
	t.Helper()
	var public *api.Error
	if err == nil {
		return ""
	}
	if !errors.As(err, &public) {
		t.Fatalf("%v is no *api.Error", err)
	}
	return public.Code
}

// gauge records how many calls run at the same time.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
}

func (g *gauge) leave() { g.now.Add(-1) }
