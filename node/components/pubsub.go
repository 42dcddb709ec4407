package components

import (
	"context"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// TypePubSubRaft is the component type of the replicated topics.
const TypePubSubRaft = "pubsub.raft"

// replicatedTopics returns the factory for pubsub.raft. The topics of a component are identified by the namespace and
// the name of the component.
func replicatedTopics(host *raftfsm.Host) loader.PubSubFactory {
	return loader.PubSubFactory{Fields: topics.Fields(), Open: func(_ context.Context, c loader.PubSubConfig) (
		pubsub.Broker, error) {
		return host.Broker(c.Namespace, c.Name, topics.OptionsFrom(c.Metadata, c.Logger)), nil
	}}
}

// PubSub returns the publish/subscribe component with the given name. It returns false if there is none.
func (c *Components) PubSub(name string) (*pubsub.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.PubSub(name)
	}
	return nil, false
}

// PubSubs returns all publish/subscribe components.
func (c *Components) PubSubs() []*pubsub.Instance {
	if s := c.set.Load(); s != nil {
		return s.PubSubs()
	}
	return nil
}
