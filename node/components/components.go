package components

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// TypeStateRaft is the component type of the replicated store.
const TypeStateRaft = "state.raft"

// Sources describes where components are declared, and which applications use them. Env is required.
type Sources struct {
	Paths       []string // directories or files with components, in order
	ConfigFiles []string // files with configurations; later ones take precedence
	Apps        []string // ids of the applications of this node
	Namespace   string
	MaxBody     int64 // bytes of the largest body of a request
	Env         func(name string) (string, bool)
	Environ     func() []string // nil = the environment cannot be listed

	SocketsFolder string // of pluggable components; empty = there are none
}

// options returns the options of the loader. The function open opens state stores of type state.raft. The parameters
// locks, items and brokers are the factories for lock.raft, configuration.raft and pubsub.raft.
func (s Sources) options(open func(context.Context, loader.StateConfig) (state.Store, error),
	locks loader.LockFactory, items loader.ConfigurationFactory, brokers loader.PubSubFactory) (loader.Options, error) {
	pod, _ := s.Env("POD_NAME")
	o := loader.Options{
		Paths: s.Paths, ConfigFiles: s.ConfigFiles, Apps: s.Apps, Namespace: s.Namespace, PodName: pod,
		MaxBody: s.MaxBody,
		Factories: loader.Factories{State: map[string]loader.StateFactory{
			TypeStateRaft: {Fields: builtin.HistoryFields(), Open: open, Fenced: true, Effects: true}},
			Locks:         map[string]loader.LockFactory{TypeLockRaft: locks},
			PubSub:        map[string]loader.PubSubFactory{TypePubSubRaft: brokers},
			Configuration: map[string]loader.ConfigurationFactory{TypeConfigurationRaft: items}},
		DefaultConfiguration: &component.Spec{Name: "configstore", Type: TypeConfigurationRaft,
			Version: component.DefaultVersion},
		DefaultLocks:  &component.Spec{Name: "lockstore", Type: TypeLockRaft, Version: component.DefaultVersion},
		DefaultPubSub: &component.Spec{Name: "pubsub", Type: TypePubSubRaft, Version: component.DefaultVersion},
		DefaultState:  &component.Spec{Name: "statestore", Type: TypeStateRaft, Version: component.DefaultVersion},
		Env:           s.Env, Environ: s.Environ,
		UUID: uuid.NewString,
	}
	var err error
	if o.Factories, err = builtin.Factories(o.Factories); err == nil && s.SocketsFolder != "" {
		builtin.Pluggable{Folder: s.SocketsFolder, MaxMessage: s.MaxBody}.Add(o.Factories)
	}
	return o, err
}

// Read reads the declarations of s without opening components. The error joins all problems that would prevent a start;
// loader.Each returns them singly. After an error, the plan may be nil.
func Read(s Sources) (*loader.Plan, error) {
	o, err := s.options(func(context.Context, loader.StateConfig) (state.Store, error) {
		return nil, fault.New(fault.Internal, "node.Check", "a check opens no store")
	}, loader.LockFactory{Fields: lockFields()}, loader.ConfigurationFactory{Fields: loader.WrittenFields()},
		loader.PubSubFactory{Fields: topics.Fields()})
	if err != nil {
		return nil, err
	}
	o.Logger, o.Environ = slog.New(slog.DiscardHandler), nil
	plan, err := loader.Read(o)
	if plan != nil {
		err = errors.Join(loader.Each(err)...)
	}
	return plan, err
}

// Components provides the components of a node by name. The zero value has no components until Serve is called.
// Components is safe for concurrent use.
type Components struct {
	set atomic.Pointer[loader.Set] // nil until Serve
}

// Options are the dependencies of Open. All are required.
type Options struct {
	Host    *raftfsm.Host
	Logger  *slog.Logger
	Metrics *Metrics
}

// Metrics are the metrics of all components.
type Metrics struct {
	state    *state.Metrics
	bindings *bindings.Metrics
	locks    *lock.Metrics
	items    *configuration.Metrics
	secrets  *secretstores.Metrics
	pubsubs  *pubsub.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (m *Metrics, err error) {
	m = &Metrics{}
	if m.state, err = state.NewMetrics(r); err != nil {
		return nil, err
	}
	if m.bindings, err = bindings.NewMetrics(r); err != nil {
		return nil, err
	}
	if m.locks, err = lock.NewMetrics(r); err != nil {
		return nil, err
	}
	if m.items, err = configuration.NewMetrics(r); err != nil {
		return nil, err
	}
	if m.pubsubs, err = pubsub.NewMetrics(r); err != nil {
		return nil, err
	}
	m.secrets, err = secretstores.NewMetrics(r)
	return m, err
}

// Open opens the components that s declares. If the returned set is not nil, the caller must close it, even after an
// error.
func Open(ctx context.Context, s Sources, o Options) (*loader.Set, error) {
	l, err := s.running(o)
	if err != nil {
		return nil, err
	}
	return loader.Open(ctx, l)
}

// Reload reads the declarations again and opens what has changed, see loader.Reload. The parameters s and o must be the
// arguments of Open. The parameter old is the set that is in use.
func Reload(ctx context.Context, s Sources, o Options, old *loader.Set) (*loader.Set, loader.Changes, error) {
	l, err := s.running(o)
	if err != nil {
		return nil, loader.Changes{}, err
	}
	return loader.Reload(ctx, l, old)
}

// running returns the options of the loader for a running node, whose replicated components use o.Host.
func (s Sources) running(o Options) (loader.Options, error) {
	l, err := s.options(func(_ context.Context, c loader.StateConfig) (state.Store, error) {
		return o.Host.Store(c.Namespace, c.Name).KeepHistory(builtin.HistoryBounds(c.Metadata)), nil
	}, replicatedLocks(o.Host), replicatedConfiguration(o.Host), replicatedTopics(o.Host))
	if err != nil {
		return l, err
	}
	l.Logger, l.Claims = o.Logger, claims{o.Host, s.Namespace}
	l.Metrics, l.BindingMetrics, l.SecretMetrics = o.Metrics.state, o.Metrics.bindings, o.Metrics.secrets
	l.LockMetrics, l.ConfigurationMetrics = o.Metrics.locks, o.Metrics.items
	l.PubSubMetrics = o.Metrics.pubsubs
	return l, nil
}

// Serve makes the components of set available.
func (c *Components) Serve(set *loader.Set) { c.set.Store(set) }

// Loaded reports whether Serve has been called, that is, whether the components are open.
func (c *Components) Loaded() bool { return c.set.Load() != nil }

// Statuses returns the status of every component. Components that were opened come first, then those that failed, and
// then those that were ignored.
func (c *Components) Statuses() []component.Status {
	if s := c.set.Load(); s != nil {
		return s.Statuses()
	}
	return nil
}

// StateStore returns the state store with the given name. It returns false if there is none.
func (c *Components) StateStore(name string) (*state.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.StateStore(name)
	}
	return nil, false
}

// StateStores returns all state stores.
func (c *Components) StateStores() []*state.Instance {
	if s := c.set.Load(); s != nil {
		return s.StateStores()
	}
	return nil
}

// ActorStore returns the actor state store. It returns false if there is none.
func (c *Components) ActorStore() (*state.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.ActorStore()
	}
	return nil, false
}

// SecretStore returns the secret store with the given name. It returns false if there is none.
func (c *Components) SecretStore(name string) (*secretstores.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.SecretStore(name)
	}
	return nil, false
}

// SecretStores returns all secret stores.
func (c *Components) SecretStores() []*secretstores.Instance {
	if s := c.set.Load(); s != nil {
		return s.SecretStores()
	}
	return nil
}

// Binding returns the binding with the given name. It returns false if there is none.
func (c *Components) Binding(name string) (*bindings.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.Binding(name)
	}
	return nil, false
}

// Bindings returns all bindings.
func (c *Components) Bindings() []*bindings.Instance {
	if s := c.set.Load(); s != nil {
		return s.Bindings()
	}
	return nil
}
