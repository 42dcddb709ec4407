// Package loader turns component files into opened components.
//
// It owns the order of things: read every file, filter by namespace and scope, find
// duplicates, resolve references, open secret stores first and state stores after them,
// and close all of it backwards. It owns the rules that need more than one component in
// view: the default state store, the actor state store, references between components,
// the scopes of secret stores.
// It must never know a particular component, raft, HTTP or flags: types come in as
// Factories, everything else as Options. It starts no goroutines of its own.
//
// A type is added by an entry in Factories:
//
//	loader.Factories{State: map[string]loader.StateFactory{
//		"state.raft": {Open: func(ctx context.Context, c loader.StateConfig) (state.Store, error) {
//			return host.OpenStore(ctx, c.Namespace, c.Name)
//		}},
//	}}
//
// A factory declares the metadata its type reads beside what every state store reads
// (StateFields); the loader checks all of it before Open is called, and wraps what Open
// returns in the settings and metrics of component/state.
package loader

import (
	"context"
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
)

// Factories are the component types that can be opened: type string to factory, in any
// case; "state.example/v2" for a version beyond v1.
type Factories struct {
	State        map[string]StateFactory
	SecretStores map[string]SecretStoreFactory
	Bindings     map[string]BindingFactory
}

// BindingFactory makes bindings of one type.
type BindingFactory struct {
	// Fields declares the metadata of this type without those of BindingFields.
	Fields []component.Field
	// Open opens a binding, as StateFactory.Open does. It receives nothing before its
	// input is started.
	Open func(ctx context.Context, c BindingConfig) (bindings.Binding, error)
}

// BindingConfig is what a binding is opened from.
type BindingConfig struct {
	Name      string // component name
	Namespace string // of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Direction bindings.Direction
	Logger    *slog.Logger // carries the component's name
	Claims    bindings.Claims
}

// StateFactory makes state stores of one type.
type StateFactory struct {
	// Fields declares the metadata of this type without those of StateFields.
	Fields []component.Field
	// Open opens a store. ctx bounds the opening, not the life of the store, and must be
	// honoured. Errors are *fault.Error.
	Open func(ctx context.Context, c StateConfig) (state.Store, error)
}

// StateConfig is what a state store is opened from. Settings are applied by the loader,
// whatever the store does with them.
type StateConfig struct {
	Name      string // component name
	Namespace string // of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Settings  state.Settings
	Logger    *slog.Logger // carries the component's name
}

// SecretStoreFactory makes secret stores of one type.
type SecretStoreFactory struct {
	// Fields declares the metadata of this type.
	Fields []component.Field
	// Open opens a store, as StateFactory.Open does.
	Open func(ctx context.Context, c SecretStoreConfig) (secretstores.Store, error)
}

// SecretStoreConfig is what a secret store is opened from.
type SecretStoreConfig struct {
	Name      string // component name
	Namespace string // of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Logger    *slog.Logger     // carries the component's name

	Env     func(name string) (string, bool) // looks up environment variables
	Environ func() []string                  // lists them as "NAME=value"
}
