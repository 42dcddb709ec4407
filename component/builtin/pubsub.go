package builtin

import (
	"context"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	pubsubredis "github.com/quorate/quorate/component/pubsub/redis"
)

func allPubSubs() map[string]loader.PubSubFactory {
	return map[string]loader.PubSubFactory{
		inmemory.Type:    {Fields: inmemory.Fields(), Open: openPubSubInMemory, Volatile: true},
		pubsubredis.Type: {Fields: pubsubredis.Fields(), Open: openPubSubRedis},
	}
}

func openPubSubInMemory(_ context.Context, c loader.PubSubConfig) (pubsub.Broker, error) {
	return inmemory.Open(inmemory.OptionsFrom(c.Metadata)), nil
}

func openPubSubRedis(ctx context.Context, c loader.PubSubConfig) (pubsub.Broker, error) {
	b, err := pubsubredis.Open(ctx, pubsubredis.Options{Metadata: c.Metadata, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return b, nil
}
