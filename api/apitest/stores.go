package apitest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Instance returns an instance of a store with default settings.
func Instance(name string, store state.Store) *state.Instance {
	return &state.Instance{
		Name: name, Type: "state.in-memory", Version: "v1", Store: store,
		DefaultConsistency: state.Eventual, Features: state.FeaturesOf(store),
	}
}

// Stores implements api.StateStores. List must be sorted by name.
type Stores struct {
	List  []*state.Instance
	Ready bool // false = the stores are not loaded yet
}

// StateStore returns the store with a name.
func (s *Stores) StateStore(name string) (*state.Instance, bool) {
	i, ok := slices.BinarySearchFunc(s.List, name, func(inst *state.Instance, name string) int {
		return cmp.Compare(inst.Name, name)
	})
	if !ok {
		return nil, false
	}
	return s.List[i], true
}

// StateStores returns all stores.
func (s *Stores) StateStores() []*state.Instance { return s.List }

// ActorStore returns the actor state store.
func (s *Stores) ActorStore() (*state.Instance, bool) {
	for _, inst := range s.List {
		if inst.ActorStore {
			return inst, true
		}
	}
	return nil, false
}

// Loaded reports whether the list of stores is complete.
func (s *Stores) Loaded() bool { return s.Ready }

// plainStore hides the optional abilities of a store, such as transactions.
type plainStore struct{ state.Store }

// faulty is a store whose failures depend on the key. If a key is the name of a fault code, operations on the key fail
// with that code. For example, a read of "timeout" returns fault.Timeout. Operations on a few other keys, such as
// "panic", fail in other ways. All remaining keys work.
type faulty struct{ state.Store }

func (s faulty) failure(ctx context.Context, stored string) error {
	_, key, _ := strings.Cut(stored, state.Separator)
	code := fault.Code(key)
	switch code {
	case fault.Unavailable, fault.Indeterminate, fault.Timeout, fault.Internal, fault.Corrupt,
		fault.TooLarge, fault.Invalid, fault.Denied, fault.Unimplemented, fault.NotLeader:
		return &fault.Error{Code: code, Op: "faulty.Do", Msg: "the store reported " + key, Hint: "a hint", Key: stored}
	case "deadline":
		<-ctx.Done()
		return ctx.Err()
	case "plain-error":
		return errors.New("a bare error")
	case "panic":
		panic("secret value")
	case "nil-map":
		var m map[string]int
		//lint:ignore SA5000 the panic of the runtime is what is wanted
		m[key] = 1
	}
	return nil
}

func (s faulty) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if err := s.failure(ctx, r.Key); err != nil {
		return state.Item{}, err
	}
	return s.Store.Get(ctx, r)
}

func (s faulty) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	for _, item := range r.Items {
		if err := s.failure(ctx, item.Key); err != nil {
			return state.Written{}, err
		}
	}
	return s.Store.Set(ctx, r)
}

func (s faulty) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	if err := s.failure(ctx, r.Key); err != nil {
		return state.Written{}, err
	}
	return s.Store.Delete(ctx, r)
}

func (s faulty) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	for _, operation := range r.Operations {
		if err := s.failure(ctx, operation.Key); err != nil {
			return state.Written{}, err
		}
	}
	return state.AbilitiesOf(s.Store).Transactor.Transact(ctx, r)
}

func (s faulty) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	if err := s.failure(ctx, r.Prefix); err != nil {
		return state.Page{}, err
	}
	return state.AbilitiesOf(s.Store).Lister.List(ctx, r)
}
