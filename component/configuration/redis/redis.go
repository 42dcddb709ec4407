// Package redis implements the component type configuration.redis, which reads configuration items from a Redis server.
// Items are stored as in Dapr's component: the key of an item is a Redis key, and the Redis string is either the value,
// or value||version.
//
// The package owns this encoding, and never writes items. Its goroutines belong to a follow.Hub and to the client
// library; Close ends them.
package redis

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/follow"
	"github.com/quorate/quorate/component/state"
	redisstate "github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "configuration.redis"

// Fields returns the metadata fields of the component type. Names and defaults are the same as in Dapr.
func Fields() []component.Field { return redisstate.ClientFields() }

// portion is how many keys are read in one round trip.
const portion = 256

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Logger   *slog.Logger
	Poll     time.Duration // pause between reads if Redis reports no changes; 0 = the default of follow
}

// Store implements configuration.Store.
type Store struct {
	client *redisstate.Client
	source source
	hub    *follow.Hub
}

var _ configuration.Store = (*Store)(nil)

// Open connects to Redis and tries again until ctx ends.
func Open(ctx context.Context, o Options) (*Store, error) {
	client, err := redisstate.Dial(ctx, redisstate.Options{Metadata: o.Metadata, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, source: source{client, configuration.NewFlaws(o.Logger)}}
	s.hub = follow.New(follow.Options{Source: s.source, Logger: o.Logger, Poll: o.Poll})
	return s, nil
}

// Get implements configuration.Store. It may send several requests to Redis, so the items can be from different points
// in time.
func (s *Store) Get(ctx context.Context, r configuration.GetRequest) (configuration.Found, error) {
	items, err := s.source.Read(ctx, r.Keys)
	return configuration.Found{Items: items}, err
}

// Subscribe implements configuration.Store.
func (s *Store) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription, error) {
	return s.hub.Subscribe(ctx, "", r.Keys, r.Initial)
}

// Close implements configuration.Store.
func (s *Store) Close() error {
	err := s.client.Close() // first: the client does not end a read when its context is canceled
	s.hub.Close()
	return err
}

// source implements follow.Source.
type source struct {
	client *redisstate.Client
	flaws  *configuration.Flaws
}

// Read implements follow.Source. It logs and skips items that are not UTF-8, because gRPC cannot send them.
func (s source) Read(ctx context.Context, keys []string) ([]configuration.Item, error) {
	const op = "redis.Get"
	keys = slices.Clone(keys)
	if len(keys) == 0 {
		var err error
		if keys, err = s.client.Keys(ctx, op); err != nil {
			return nil, err
		}
	}
	slices.Sort(keys)
	var out []configuration.Item
	var tally configuration.Tally
	for part := range slices.Chunk(slices.Compact(keys), portion) {
		texts, err := s.client.Texts(ctx, op, part)
		if err != nil {
			return nil, err
		}
		for _, k := range part {
			item := itemOf(k, texts[k])
			if item.Deleted() { // as in Dapr, an empty string is no item
				continue
			}
			if !utf8.ValidString(k) || !utf8.ValidString(texts[k]) {
				s.flaws.Warn(k, "a configuration item is left out, because its key or its value is not UTF-8",
					"hint", "write it as UTF-8, or use another database for other data")
				continue
			}
			if err := tally.Add(op, &item); err != nil {
				return nil, err
			}
			out = append(out, item)
		}
	}
	return out, nil
}

// itemOf parses a Redis string in Dapr's form value||version. The version may be missing.
func itemOf(key, text string) configuration.Item {
	value, rest, _ := strings.Cut(text, state.Separator)
	version, _, _ := strings.Cut(rest, state.Separator)
	return configuration.Item{Key: key, Value: value, Version: version}
}

// Listen implements follow.Source with Redis keyspace notifications, which it enables on the server if necessary. If
// the notifications cannot cover all changes, for example in a Redis Cluster, Listen calls reports.Silent and waits
// until ctx ends.
func (s source) Listen(ctx context.Context, _ string, reports follow.Reports) error {
	silent := func(why string) error {
		reports.Silent(why)
		<-ctx.Done()
		return ctx.Err()
	}
	if s.client.Cluster() {
		return silent("each server of a Redis Cluster reports its own keys only")
	}
	err := s.client.Notify(ctx)
	switch {
	case fault.Is(err, fault.Denied), fault.Is(err, fault.Invalid):
		return silent(fault.Text(err))
	case err != nil:
		return err
	}
	prefix := "__keyspace@" + strconv.Itoa(s.client.Database()) + "__:"
	err = s.client.Listen(ctx, prefix+"*", reports.Ready, func(channel string) {
		reports.Changed(strings.TrimPrefix(channel, prefix))
	})
	if fault.Is(err, fault.Denied) {
		return silent(fault.Text(err))
	}
	return err
}
