package loader

import (
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Options say what to load and with what.
type Options struct {
	// Paths are folders and files in the order they count. Of a folder the files that end
	// in .yaml or .yml are read, in name order, without those in folders below.
	Paths     []string
	Apps      []string // application ids this node serves, at least one; they decide about scopes
	Namespace string   // of the node; empty = none
	PodName   string   // for {podName}; empty = none
	// ConfigFiles are files with Configurations, which count as if they lay in Paths.
	ConfigFiles []string

	Factories Factories
	// DefaultState is the state store to open when no state component is meant for this
	// node; it carries the actor state too. nil = none.
	DefaultState *component.Spec

	Env            func(name string) (string, bool) // looks up environment variables
	Environ        func() []string                  // lists them as "NAME=value"; nil = they cannot be listed
	UUID           func() string                    // for {uuid}
	Logger         *slog.Logger
	Metrics        *state.Metrics    // nil = state stores are not counted
	BindingMetrics *bindings.Metrics // nil = bindings are not counted
	Claims         bindings.Claims   // for bindings that act once in the cluster; nil only where none is opened
	// SecretMetrics are those of secret stores; nil = they are not counted.
	SecretMetrics *secretstores.Metrics
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

// placeholders are those of this node. With several applications there is no one app id
// that {appID} could stand for.
func (o Options) placeholders() component.Placeholders {
	p := component.Placeholders{UUID: o.UUID, PodName: o.PodName, Namespace: o.Namespace}
	if len(o.Apps) == 1 {
		p.AppID = o.Apps[0]
	}
	return p
}
