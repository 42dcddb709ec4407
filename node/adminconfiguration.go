package node

import (
	"context"
	"strings"

	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/components"
)

// configurationAdmin implements adminapi.Configurations with the components of the node. It does not check which
// applications may read or write a component, because users of the admin socket have all rights.
type configurationAdmin struct{ components *components.Components }

func (a configurationAdmin) store(name string) (*configuration.Instance, error) {
	if !a.components.Loaded() {
		return nil, fault.New(fault.Unavailable, "node.Configuration", "this node has not opened its components")
	}
	i, ok := a.components.ConfigurationStore(name)
	if ok {
		return i, nil
	}
	var names []string
	for _, i := range a.components.ConfigurationStores() {
		names = append(names, i.Name)
	}
	e := &fault.Error{Code: fault.NotFound, Op: "node.Configuration", Key: name,
		Msg: "this node has no configuration store " + name}
	if len(names) > 0 {
		e.Hint = "use " + strings.Join(names, " or ")
	}
	return nil, e
}

// ConfigurationItems implements adminapi.Configurations.
func (a configurationAdmin) ConfigurationItems(ctx context.Context, store string,
	keys []string) ([]configurations.Change, error) {
	i, err := a.store(store)
	if err != nil {
		return nil, err
	}
	found, err := i.Store.Get(ctx, configuration.GetRequest{Keys: keys, Strong: true})
	return configurations.ChangesOf(found.Items), err
}

// WriteConfiguration implements adminapi.Configurations.
func (a configurationAdmin) WriteConfiguration(ctx context.Context, store string,
	changes []configurations.Change) ([]string, error) {
	i, err := a.store(store)
	if err != nil {
		return nil, err
	}
	writer, ok := i.Store.(configuration.Writer)
	if !ok {
		return nil, &fault.Error{Code: fault.Unimplemented, Op: "node.Configuration", Key: store,
			Msg:  "configuration store " + store + " of type " + i.Type + " cannot be written here",
			Hint: "write it with its own tools"}
	}
	written, err := writer.Write(ctx, configuration.WriteRequest{Changes: configurations.Changes(changes)})
	return written.Versions, err
}

// WatchConfiguration implements adminapi.Configurations.
func (a configurationAdmin) WatchConfiguration(ctx context.Context, store string,
	keys []string) (configuration.Subscription, error) {
	i, err := a.store(store)
	if err != nil {
		return nil, err
	}
	return i.Store.Subscribe(ctx, configuration.SubscribeRequest{Keys: keys, Initial: true})
}
