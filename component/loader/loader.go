// Package loader opens the components that are declared in component files.
//
// It reads all files, and selects the components for this node by namespace and scopes. It opens the secret stores
// first, because other components refer to their secrets. Close closes the components in reverse order. Reload replaces
// the components whose files have changed.
//
// The package owns the rules that involve several components. Examples are duplicate names, the default state store,
// the store with the actor state, and the scopes of secret stores. It starts no goroutines of its own.
//
// The caller passes the component types as Factories. To add a type, add an entry:
//
//	loader.Factories{State: map[string]loader.StateFactory{
//		"state.raft": {Open: func(ctx context.Context, c loader.StateConfig) (state.Store, error) {
//			return host.OpenStore(ctx, c.Namespace, c.Name)
//		}},
//	}}
//
// A factory declares the metadata fields of its type. Every state store also has the fields of StateFields. The loader
// checks the metadata before it calls Open. It then adds the settings and metrics of component/state to the store.
package loader

import (
	"context"
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
)

// Factories are the component types that can be opened. Each map has the factories of one building block by type name,
// such as "state.redis". The names are not case-sensitive. A name such as "state.example/v2" is for version v2 of a
// type; a name without a version means v1.
type Factories struct {
	State         map[string]StateFactory
	SecretStores  map[string]SecretStoreFactory
	Bindings      map[string]BindingFactory
	Middleware    map[string]MiddlewareFactory
	Locks         map[string]LockFactory
	Configuration map[string]ConfigurationFactory
	PubSub        map[string]PubSubFactory
}

// MiddlewareFactory makes HTTP middleware of one type.
type MiddlewareFactory struct {
	// Fields are the metadata fields of this type.
	Fields []component.Field
	// Open opens a middleware, as StateFactory.Open does. The second result closes it.
	Open func(ctx context.Context, c MiddlewareConfig) (middleware.Filter, func() error, error)
}

// MiddlewareConfig is the configuration of a middleware.
type MiddlewareConfig struct {
	Name     string           // component name
	Metadata component.Values // the declared Fields, checked
	Logger   *slog.Logger     // carries the component's name
}

// BindingFactory makes bindings of one type.
type BindingFactory struct {
	// Fields are the metadata fields of this type without those of BindingFields.
	Fields []component.Field
	// Open opens a binding, as StateFactory.Open does. The binding receives nothing before its input is started.
	Open func(ctx context.Context, c BindingConfig) (bindings.Binding, error)
}

// BindingConfig is the configuration of a binding.
type BindingConfig struct {
	Name      string // component name
	Namespace string // namespace of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Direction bindings.Direction
	Logger    *slog.Logger // carries the component's name
	Claims    bindings.Claims
}

// StateFactory makes state stores of one type.
type StateFactory struct {
	// Fields are the metadata fields of this type without those of StateFields.
	Fields []component.Field
	// Open opens a store. ctx bounds the opening, not the use of the store, and must be honoured. Errors are
	// *fault.Error.
	Open func(ctx context.Context, c StateConfig) (state.Store, error)
	// Volatile types lose their values when a store is closed. A running store is not replaced when its file changes.
	Volatile bool
	// Fenced types check in each write of actor state that the writer still owns the actor.
	Fenced bool
	// Effects says that transactions of the type can have effects in other components (see state.Effect).
	Effects bool
}

// StateConfig is the configuration that the factory of a state store receives. The factory may ignore Settings, because
// the loader applies them to the opened store.
type StateConfig struct {
	Name      string // component name
	Namespace string // namespace of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Settings  state.Settings
	Logger    *slog.Logger // carries the component's name
	// LargestValue is the largest value in bytes that the store must read from an outside server.
	LargestValue int64
}

// SecretStoreFactory makes secret stores of one type.
type SecretStoreFactory struct {
	// Fields are the metadata fields of this type.
	Fields []component.Field
	// Open opens a store, as StateFactory.Open does.
	Open func(ctx context.Context, c SecretStoreConfig) (secretstores.Store, error)
}

// SecretStoreConfig is the configuration of a secret store.
type SecretStoreConfig struct {
	Name      string // component name
	Namespace string // namespace of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Logger    *slog.Logger     // carries the component's name

	Env     func(name string) (string, bool) // looks up environment variables
	Environ func() []string                  // lists the environment variables as "NAME=value"
}
