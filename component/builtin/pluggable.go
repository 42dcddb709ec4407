package builtin

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
)

// Pluggable describes where the processes of pluggable components are.
type Pluggable struct {
	Folder     string // folder of the sockets
	MaxMessage int64  // largest data in an answer, in bytes
}

// Add adds factories for pluggable components to f. The new types are "state.*", "secretstores.*", "bindings.*" and
// "pubsub.*". For example, "state.*" stands for every state store type that is not already in f.
func (p Pluggable) Add(f loader.Factories) {
	fields := pluggable.Fields()
	stores, secrets, bound, brokers := keys(f.State), keys(f.SecretStores), keys(f.Bindings), keys(f.PubSub)
	f.State["state.*"] = loader.StateFactory{Fields: fields,
		Open: func(ctx context.Context, c loader.StateConfig) (state.Store, error) {
			return pluggable.OpenState(ctx, p.options(c.Name, c.Type, c.Metadata, c.Logger, stores))
		}}
	f.SecretStores["secretstores.*"] = loader.SecretStoreFactory{Fields: fields,
		Open: func(ctx context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
			return pluggable.OpenSecrets(ctx, p.options(c.Name, c.Type, c.Metadata, c.Logger, secrets))
		}}
	f.Bindings["bindings.*"] = loader.BindingFactory{Fields: fields,
		Open: func(ctx context.Context, c loader.BindingConfig) (bindings.Binding, error) {
			return pluggable.OpenBinding(ctx, p.options(c.Name, c.Type, c.Metadata, c.Logger, bound), c.Direction)
		}}
	f.PubSub["pubsub.*"] = loader.PubSubFactory{Fields: fields,
		Open: func(ctx context.Context, c loader.PubSubConfig) (pubsub.Broker, error) {
			return pluggable.OpenPubSub(ctx, p.options(c.Name, c.Type, c.Metadata, c.Logger, brokers))
		}}
}

func keys[F any](types map[string]F) []string { return slices.Sorted(maps.Keys(types)) }

func (p Pluggable) options(name, typ string, m component.Values, log *slog.Logger, builtIn []string,
) pluggable.Options {
	return pluggable.Options{Folder: p.Folder, Name: name, Type: typ, Metadata: m, MaxMessage: p.MaxMessage,
		BuiltIn: builtIn, Logger: log}
}
