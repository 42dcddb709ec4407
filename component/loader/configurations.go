package loader

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
)

// ConfigurationFactory makes configuration stores of one type.
type ConfigurationFactory struct {
	Fields []component.Field
	// Open opens a configuration store, as StateFactory.Open does.
	Open func(ctx context.Context, c ConfigurationConfig) (configuration.Store, error)
	// Volatile stores lose their items when they are closed.
	Volatile bool
}

// ConfigurationConfig is the configuration of a configuration store.
type ConfigurationConfig struct {
	Name      string // component name
	Namespace string // namespace of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Logger    *slog.Logger     // carries the component's name
}

// WrittenFields returns the metadata fields that only writable configuration stores have.
func WrittenFields() []component.Field {
	return []component.Field{{Name: configuration.MetadataWriters},
		{Name: configuration.MetadataMaxValueSize, Kind: component.Size}}
}

func (p *opening) configurationStore(ctx context.Context, u *unit) error {
	if p.carry(u) {
		return nil
	}
	store, err := u.configuration.Open(ctx, ConfigurationConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, Logger: u.logger(p.options.Logger),
	})
	if err != nil {
		return u.opened(err)
	}
	i := &configuration.Instance{
		Name: u.spec.Name, Type: u.typ(), Version: u.spec.Version, Namespace: p.options.Namespace,
		Scopes: slices.Clone(u.spec.Scopes), Writers: writersOf(u), Store: store,
	}
	if p.options.ConfigurationMetrics != nil {
		p.options.ConfigurationMetrics.Instrument(i)
	}
	p.set.add(u, &closer{name: i.Name, close: store.Close}, func(s *Set, u *unit) {
		s.configurations = append(s.configurations, i)
		s.statuses = append(s.statuses, statusOf(u.spec, component.Ready, ""))
	})
	return nil
}

// writersOf returns the ids of the applications that may write to a configuration store, from the metadata of the
// component. It returns nil if the component type does not support writes.
func writersOf(u *unit) (out []string) {
	if !slices.ContainsFunc(u.configuration.Fields, func(f component.Field) bool {
		return f.Name == configuration.MetadataWriters
	}) {
		return nil
	}
	for one := range strings.SplitSeq(u.values.Text(configuration.MetadataWriters), ",") {
		if one = strings.TrimSpace(one); one != "" {
			out = append(out, one)
		}
	}
	return out
}

// ConfigurationStore returns the configuration store with the given component name. The name is case-sensitive.
func (s *Set) ConfigurationStore(name string) (*configuration.Instance, bool) {
	for _, i := range s.configurations {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// ConfigurationStores returns the configuration stores in the order of their opening.
func (s *Set) ConfigurationStores() []*configuration.Instance { return slices.Clone(s.configurations) }
