// Package builtin has the table of built-in component types, which maps each type to its factory. The package owns only
// this table.
//
// To add a type, add a line here and a page in docs/components. Some types need a running node, for example state.raft.
// Their factories are passed in by the caller. The package starts no goroutines.
package builtin

import (
	"context"
	"maps"

	"github.com/quorate/quorate/component"
	configpostgresql "github.com/quorate/quorate/component/configuration/postgresql"
	configredis "github.com/quorate/quorate/component/configuration/redis"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/lock"
	lockredis "github.com/quorate/quorate/component/lock/redis"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/azure/cosmosdb"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/mongodb"
	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/internal/fault"
)

// Factories returns the built-in factories together with those in extra. It returns fault.Internal if a type in extra
// is already built in.
func Factories(extra loader.Factories) (loader.Factories, error) {
	all := loader.Factories{
		State: map[string]loader.StateFactory{
			inmemory.Type: {Fields: HistoryFields(), Open: openInMemory, Volatile: true},
			redis.Type:    {Fields: redis.Fields(), Open: openRedis},
			mongodb.Type:  {Fields: mongodb.Fields(), Open: openMongoDB},
			cosmosdb.Type: {Fields: append(cosmosdb.Fields(), entraFields()...), Open: openCosmosDB},

			postgresql.Type:          openPostgreSQL(postgresql.V1),
			postgresql.Type + "/v2":  openPostgreSQL(postgresql.V2),
			postgresql.Alias:         openPostgreSQL(postgresql.V1),
			postgresql.Alias + "/v2": openPostgreSQL(postgresql.V2),

			sqlserver.Type:         openSQLServer(sqlserver.V1),
			sqlserver.Type + "/v2": openSQLServer(sqlserver.V2),
		},
		SecretStores: secretStores(),
		Bindings:     allBindings(),
		Locks:        map[string]loader.LockFactory{lockredis.Type: {Fields: lockredis.Fields(), Open: openRedisLocks}},
		Configuration: map[string]loader.ConfigurationFactory{
			TypeConfigurationInMemory: {Fields: loader.WrittenFields(), Open: openConfigurationInMemory,
				Volatile: true},
			configredis.Type:       {Fields: configredis.Fields(), Open: openConfigurationRedis},
			configpostgresql.Type:  {Fields: configpostgresql.Fields(), Open: openConfigurationPostgreSQL},
			configpostgresql.Alias: {Fields: configpostgresql.Fields(), Open: openConfigurationPostgreSQL},
		},
		Middleware: allMiddleware(),
		PubSub:     allPubSubs(),
	}
	if err := add(all.Middleware, extra.Middleware); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.PubSub, extra.PubSub); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.Bindings, extra.Bindings); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.Locks, extra.Locks); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.Configuration, extra.Configuration); err != nil {
		return loader.Factories{}, err
	}
	if err := add(all.State, extra.State); err != nil {
		return loader.Factories{}, err
	}
	return all, add(all.SecretStores, extra.SecretStores)
}

func add[F any](to, from map[string]F) error {
	for name := range from {
		if _, twice := to[name]; twice {
			return fault.New(fault.Internal, "builtin.Factories", "the component type "+name+" is built in already")
		}
	}
	maps.Copy(to, from)
	return nil
}

// HistoryFields returns the metadata fields that bound the changes kept for watchers.
func HistoryFields() []component.Field {
	return []component.Field{
		{Name: state.MetadataWatchHistory, Kind: component.Size},
		{Name: state.MetadataWatchHistoryAge, Kind: component.Duration},
	}
}

// HistoryBounds returns the bounds that the values of HistoryFields set.
func HistoryBounds(v component.Values) state.HistoryBounds {
	return state.HistoryBounds{Bytes: v.Int(state.MetadataWatchHistory), Age: v.Duration(state.MetadataWatchHistoryAge)}
}

func openInMemory(_ context.Context, c loader.StateConfig) (state.Store, error) {
	return inmemory.Open(inmemory.Options{History: HistoryBounds(c.Metadata)}), nil
}

func openRedis(ctx context.Context, c loader.StateConfig) (state.Store, error) {
	s, err := redis.Open(ctx, redis.Options{Metadata: c.Metadata, Logger: c.Logger, LargestValue: c.LargestValue})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openRedisLocks(ctx context.Context, c loader.LockConfig) (lock.Store, string, error) {
	s, err := lockredis.Open(ctx, lockredis.Options{Metadata: c.Metadata, Logger: c.Logger})
	if err != nil {
		return nil, "", err
	}
	return s, "", nil
}

func openMongoDB(ctx context.Context, c loader.StateConfig) (state.Store, error) {
	s, err := mongodb.Open(ctx, mongodb.Options{Metadata: c.Metadata, Logger: c.Logger, Actors: c.Settings.ActorStore})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openCosmosDB(ctx context.Context, c loader.StateConfig) (state.Store, error) {
	s, err := cosmosdb.Open(ctx, cosmosdb.Options{Metadata: c.Metadata, Identity: identity(c.Metadata),
		Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openPostgreSQL(version postgresql.Version) loader.StateFactory {
	return loader.StateFactory{
		Fields: postgresql.Fields(version),
		Open: func(ctx context.Context, c loader.StateConfig) (state.Store, error) {
			s, err := postgresql.Open(ctx, postgresql.Options{Version: version, Metadata: c.Metadata, Logger: c.Logger,
				LargestValue: c.LargestValue})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	}
}

func openSQLServer(version sqlserver.Version) loader.StateFactory {
	return loader.StateFactory{
		Fields: append(sqlserver.Fields(version), entraFields()...),
		Open: func(ctx context.Context, c loader.StateConfig) (state.Store, error) {
			s, err := sqlserver.Open(ctx, sqlserver.Options{Version: version, Metadata: c.Metadata,
				Identity: identity(c.Metadata), Logger: c.Logger, LargestValue: c.LargestValue})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	}
}
