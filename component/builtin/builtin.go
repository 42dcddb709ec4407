// Package builtin is the one table of component types: type string to factory.
//
// It owns the table alone; a new type is a line here and a page in docs/components. It
// must never know a node: types that need one, such as state.raft, are handed in. It
// starts no goroutines.
package builtin

import (
	"context"
	"maps"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// Factories returns the types that need nothing but themselves, and extra ones on top. A
// type that is in both is a fault.Internal.
func Factories(extra loader.Factories) (loader.Factories, error) {
	all := loader.Factories{
		State: map[string]loader.StateFactory{
			inmemory.Type: {Open: openInMemory},
		},
		SecretStores: secretStores(),
		Bindings:     allBindings(),
	}
	if err := add(all.Bindings, extra.Bindings); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.State, extra.State); err != nil {
		return loader.Factories{}, err
	}
	return all, add(all.SecretStores, extra.SecretStores)
}

func add[F any](to, from map[string]F) error {
	for name := range from {
		if _, twice := to[name]; twice {
			return fault.New(fault.Internal, "builtin.Factories", "the component type "+name+" is built in already")
		}
	}
	maps.Copy(to, from)
	return nil
}

func openInMemory(context.Context, loader.StateConfig) (state.Store, error) {
	return inmemory.Open(inmemory.Options{}), nil
}
