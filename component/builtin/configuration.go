package builtin

import (
	"context"

	"github.com/quorate/quorate/component/configuration"
	configpostgresql "github.com/quorate/quorate/component/configuration/postgresql"
	"github.com/quorate/quorate/component/configuration/records"
	configredis "github.com/quorate/quorate/component/configuration/redis"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state/inmemory"
)

// TypeConfigurationInMemory is the type of a configuration store that keeps its items in the memory of the process.
const TypeConfigurationInMemory = "configuration.in-memory"

func openConfigurationInMemory(_ context.Context, c loader.ConfigurationConfig) (configuration.Store, error) {
	return records.New(records.Options{Backing: inmemory.Open(inmemory.Options{}),
		MaxValueSize: c.Metadata.Int(configuration.MetadataMaxValueSize), Logger: c.Logger}), nil
}

func openConfigurationRedis(ctx context.Context, c loader.ConfigurationConfig) (configuration.Store, error) {
	s, err := configredis.Open(ctx, configredis.Options{Metadata: c.Metadata, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openConfigurationPostgreSQL(ctx context.Context, c loader.ConfigurationConfig) (configuration.Store, error) {
	s, err := configpostgresql.Open(ctx, configpostgresql.Options{Metadata: c.Metadata, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return s, nil
}
