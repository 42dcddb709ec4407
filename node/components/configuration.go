package components

import (
	"context"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/raftfsm"
)

// TypeConfigurationRaft is the component type of the replicated configuration.
const TypeConfigurationRaft = "configuration.raft"

// replicatedConfiguration returns the factory for configuration.raft. A component keeps its items in the replicated
// store that has the same name. No other component uses this store, because component names are unique.
func replicatedConfiguration(host *raftfsm.Host) loader.ConfigurationFactory {
	return loader.ConfigurationFactory{Fields: loader.WrittenFields(),
		Open: func(_ context.Context, c loader.ConfigurationConfig) (configuration.Store, error) {
			return records.New(records.Options{Backing: host.Store(c.Namespace, c.Name),
				MaxValueSize: c.Metadata.Int(configuration.MetadataMaxValueSize), Logger: c.Logger}), nil
		}}
}

// ConfigurationStore returns the configuration store with the given name. It returns false if there is none.
func (c *Components) ConfigurationStore(name string) (*configuration.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.ConfigurationStore(name)
	}
	return nil, false
}

// ConfigurationStores returns all configuration stores.
func (c *Components) ConfigurationStores() []*configuration.Instance {
	if s := c.set.Load(); s != nil {
		return s.ConfigurationStores()
	}
	return nil
}
