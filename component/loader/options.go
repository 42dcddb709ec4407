package loader

import (
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Options configure the loader.
type Options struct {
	// Paths are folders and files, in their order. A folder's files that end in .yaml or .yml are read in name
	// order, without subfolders.
	Paths     []string
	Apps      []string // application ids of this node, at least one; they select the scopes
	Namespace string   // namespace of the node; empty = none
	PodName   string   // value of {podName}; empty = none
	// ConfigFiles are files with Configurations. They are read as if they were in Paths.
	ConfigFiles []string

	Factories Factories
	// DefaultState is the state store to open if no state component is meant for this node. It also has the actor
	// state. nil = none.
	DefaultState *component.Spec
	// DefaultLocks is the lock store to open if no lock component is meant for this node. nil = none.
	DefaultLocks *component.Spec
	// DefaultConfiguration is the configuration store to open if no such component is meant for this node. nil = none.
	DefaultConfiguration *component.Spec
	// DefaultPubSub is the publish/subscribe component to open unless a component for this node has its name. nil =
	// none.
	DefaultPubSub *component.Spec

	MaxBody int64 // bytes of the largest body of a request; 0 = unknown

	Env         func(name string) (string, bool) // looks up environment variables
	Environ     func() []string                  // lists environment variables as "NAME=value"; nil = not possible
	UUID        func() string                    // returns a new UUID for each {uuid}
	Logger      *slog.Logger
	Metrics     *state.Metrics // nil = state stores are not counted
	LockMetrics *lock.Metrics  // nil = locks are not counted
	// ConfigurationMetrics are the metrics of configuration stores; nil = they are not counted.
	ConfigurationMetrics *configuration.Metrics
	BindingMetrics       *bindings.Metrics // nil = bindings are not counted
	PubSubMetrics        *pubsub.Metrics   // nil = publish/subscribe components are not counted
	Claims               bindings.Claims   // for bindings that act once in the cluster; nil = there are none
	// SecretMetrics are the metrics of secret stores; nil = they are not counted.
	SecretMetrics *secretstores.Metrics

	onlyState   string      // open only this state store and the secret stores; empty = everything
	keepDefault bool        // open DefaultState also beside other stores
	actors      *actorStore // has or had the actor state in the previous set; nil = none
}

func (o Options) validate() error {
	missing := ""
	switch {
	case len(o.Apps) == 0:
		missing = "Apps"
	case o.Env == nil:
		missing = "Env"
	case o.UUID == nil:
		missing = "UUID"
	case o.Logger == nil:
		missing = "Logger"
	}
	if missing == "" {
		return nil
	}
	return fault.New(fault.Internal, "loader.Options", missing+" is not set")
}

func (o Options) environ() []string {
	if o.Environ == nil {
		return nil
	}
	return o.Environ()
}

// placeholders returns the values of placeholders in component files, such as {namespace}. {appID} has a value only if
// the node serves exactly one application.
func (o Options) placeholders() component.Placeholders {
	p := component.Placeholders{UUID: o.UUID, PodName: o.PodName, Namespace: o.Namespace}
	if len(o.Apps) == 1 {
		p.AppID = o.Apps[0]
	}
	return p
}
