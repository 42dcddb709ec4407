package apitest

import (
	"context"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// faultyBroker is a broker in memory. Publishing to a topic fails if its name begins with "fail". In a bulk publish,
// every second message fails if the name of the topic begins with "half".
type faultyBroker struct{ pubsub.Broker }

// Publish implements pubsub.Broker.
func (b faultyBroker) Publish(ctx context.Context, r pubsub.PublishRequest) (out []pubsub.Failure, err error) {
	failed := fault.New(fault.Unavailable, "test", "the broker is closing")
	switch {
	case strings.HasPrefix(r.Topic, "fail"):
		return nil, failed
	case strings.HasPrefix(r.Topic, "half"):
		for i := 1; i < len(r.Messages); i += 2 {
			out = append(out, pubsub.Failure{Index: i, Err: failed})
		}
		return out, nil
	}
	return b.Broker.Publish(ctx, r)
}

// PubSubCatalogue has the brokers of a World:
//
//	messages  accepts everything
//	faulty    fails; see the type faultyBroker
//	limited   allows only the topic "a"
//	foreign   belongs to another application
type PubSubCatalogue struct {
	List  []*pubsub.Instance
	Ready bool
}

func newPubSubs(t testing.TB) *PubSubCatalogue {
	broker := func() pubsub.Broker {
		b := inmemory.Open(inmemory.Options{})
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	return &PubSubCatalogue{Ready: true, List: []*pubsub.Instance{
		{Name: "messages", Type: "pubsub.test", Broker: broker()},
		{Name: "faulty", Type: "pubsub.test", Broker: faultyBroker{broker()}},
		{Name: "limited", Type: "pubsub.test", Broker: broker(), Topics: pubsub.Topics{Allowed: []string{"a"}}},
		{Name: "foreign", Type: "pubsub.test", Broker: broker(), Scopes: []string{"another"}},
	}}
}

// PubSub returns the component with a name.
func (c *PubSubCatalogue) PubSub(name string) (*pubsub.Instance, bool) {
	for _, i := range c.List {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// PubSubs returns all components.
func (c *PubSubCatalogue) PubSubs() []*pubsub.Instance { return c.List }

// Loaded reports whether all components have been opened.
func (c *PubSubCatalogue) Loaded() bool { return c.Ready }
