package builtin

import (
	"context"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
)

func allPubSubs() map[string]loader.PubSubFactory {
	return map[string]loader.PubSubFactory{
		inmemory.Type: {Fields: inmemory.Fields(), Open: openPubSubInMemory, Volatile: true},
	}
}

func openPubSubInMemory(_ context.Context, c loader.PubSubConfig) (pubsub.Broker, error) {
	return inmemory.Open(inmemory.OptionsFrom(c.Metadata)), nil
}
