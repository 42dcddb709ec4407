// Package redis implements the component type state.redis: a state store in Redis. Redis can be a single server, a
// group of servers that Redis Sentinel manages, or a Redis Cluster. The package owns the layout of the data in Redis
// and the conversion of Redis errors to fault codes.
//
// The client library, the type outside.Gatherer and the listing of a Redis Cluster start goroutines. Close ends them.
//
// The data in Redis has the same layout as in Dapr's component. The value of a key in Redis is a hash with these
// fields:
//
//	data         the value
//	version      the ETag
//	first-write  exists if the key was created with first-write concurrency
//	quorate      only if the value is not JSON: the version of the value, then its content type
//
// Dapr increments the version with each write. This package writes a random version instead, so an ETag is not used
// twice even if the key is deleted and created again.
//
// Dapr ignores the field quorate, so this field is out of date after Dapr has overwritten the value. The version in the
// field then differs from the field version, and the package ignores the field quorate.
package redis

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "state.redis"

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Logger   *slog.Logger
	Now      func() time.Time // nil = time.Now
	// LargestValue is the largest value in bytes that is read; 0 = state.LargestValue.
	LargestValue int64
}

// Store implements state.Store and all optional interfaces except state.Watcher.
type Store struct {
	client   goredis.UniversalClient
	settings settings
	now      func() time.Time
	script   *goredis.Script
	level    atomic.Value // state.Level of answers about single keys
	gather   *outside.Gatherer
	listing  *outside.Listing
}

// Open connects to Redis. If Redis cannot be reached, Open retries until the deadline of ctx. It returns these errors:
//
//   - fault.Invalid for settings that contradict each other
//   - fault.Denied for refused credentials
//   - fault.Unavailable if Redis does not answer
func Open(ctx context.Context, o Options) (*Store, error) {
	set, err := read(o.Metadata)
	if err != nil {
		return nil, err
	}
	set.warn(o.Logger)
	goredis.SetLogger(silent{}) // the logger is global; the library also returns its errors
	set.longest = cmp.Or(o.LargestValue, state.LargestValue)
	s := newStore(set, o.Now)
	if err := s.connect(ctx); err != nil {
		_ = s.client.Close() // the first error is more useful
		return nil, err
	}
	s.warnOfCluster(ctx, o.Logger)
	return s, nil
}

// newStore creates a store that connects at its first command.
func newStore(set settings, now func() time.Time) *Store {
	s := &Store{client: set.client(), settings: set, script: goredis.NewScript(source), now: now}
	s.level.Store(state.Stale)
	s.gather = outside.NewGatherer(gathered{s})
	s.listing = outside.NewListing(unordered{s})
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// warnOfCluster logs a warning if the server belongs to a Redis Cluster but the component is configured for a single
// server.
func (s *Store) warnOfCluster(ctx context.Context, log *slog.Logger) {
	if s.settings.kind != single {
		return
	}
	info, err := s.client.Info(ctx, "cluster").Result()
	if err == nil && strings.Contains(info, "cluster_enabled:1") {
		log.Warn("the server is one of a Redis Cluster: keys on its other servers are not found",
			"server", s.settings.where(), "hint", "set redisType: \"cluster\"")
	}
}

// connect waits until Redis answers, but gives up shortly before the deadline of ctx. If ctx has no deadline, connect
// tries only once.
func (s *Store) connect(ctx context.Context) error {
	const pause = 200 * time.Millisecond
	var last error
	for {
		err := s.probe(ctx)
		switch {
		case fault.Is(err, fault.Timeout):
			// The previous error has more information than the timeout.
			return cmp.Or(last, s.unreachable("redis.Open", err))
		case !fault.Is(err, fault.Unavailable):
			return err
		}
		last = err
		if until, ok := ctx.Deadline(); !ok || time.Until(until) < 2*pause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// Ping implements state.Pinger.
func (s *Store) Ping(ctx context.Context) error {
	err := s.probe(ctx)
	if errors.Is(err, goredis.ErrPoolTimeout) {
		// No connection was free in time, so the server has not answered. It may hang.
		return &fault.Error{Code: fault.Timeout, Op: "redis.Ping", Err: err,
			Msg: "Redis at " + s.settings.where() + " did not answer in time: all connections are in use"}
	}
	return err
}

// PingInterval implements state.Pinger.
func (s *Store) PingInterval() time.Duration { return outside.PingInterval }

// probe checks that Redis answers, and sets the consistency level that the store reports in its answers.
func (s *Store) probe(ctx context.Context) error {
	const op = "redis.Open"
	var err error
	if c, ok := s.client.(*goredis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			return node.Ping(ctx).Err()
		})
	} else {
		err = s.client.Ping(ctx).Err()
	}
	if err != nil {
		return s.failed(op, "", err, false)
	}
	if s.settings.kind != single {
		return nil
	}
	info, err := s.client.Info(ctx, "replication").Result()
	switch {
	case goredis.HasErrorPrefix(err, "NOPERM"):
		return nil
	case err != nil:
		return s.failed(op, "", err, false)
	case strings.Contains(info, "role:slave"):
		return &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "the Redis server at " + s.settings.where() + " is a replica",
			Hint: "give the address of the master, or use failover with Sentinel"}
	case strings.Contains(info, "connected_slaves:0"):
		s.level.Store(state.Linearizable)
	default:
		s.level.Store(state.Stale) // a replica may become the master without the newest writes
	}
	return nil
}

// Close implements state.Store.
func (s *Store) Close() error {
	err := s.client.Close()
	s.listing.Close()
	s.gather.Wait()
	if err != nil && !isClosed(err) {
		return fault.Wrap(err, "redis.Close", "closing the connections to Redis")
	}
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

// The fields of a hash.
const (
	fieldData       = "data"
	fieldVersion    = "version"
	fieldFirstWrite = "first-write"
	fieldTag        = "quorate"
)

// name returns the Redis key for a key of the state store. If hash tags are enabled, the Redis key has the
// application's prefix as its hash tag. For example, the key "app||a" becomes "{app}||a". All keys of an application
// are then in the same slot of a Redis Cluster.
func (s *Store) name(stored string) string {
	if !s.settings.hashTags {
		return stored
	}
	owner, own, ok := strings.Cut(stored, state.Separator)
	if !ok {
		return stored
	}
	return "{" + owner + "}" + state.Separator + own
}

// stored returns the key of the state store for a Redis key. It is the inverse of name. If hash tags are enabled, it
// returns false for a key that was written without them.
func (s *Store) stored(name string) (string, bool) {
	if !s.settings.hashTags {
		return name, true
	}
	owner, own, ok := strings.Cut(name, "}"+state.Separator)
	switch {
	case ok && strings.HasPrefix(owner, "{"):
		return owner[1:] + state.Separator + own, true
	case strings.Contains(name, state.Separator):
		return "", false // the key was written without hash tags
	}
	return name, true
}

// tag returns the content of the field quorate for a value, or "" if the value needs no such field.
func tag(version, contentType string) string {
	if contentType == "" {
		return ""
	}
	return version + " " + contentType
}

// contentType returns the content type of a value from the content of its field quorate. It returns "" if the field is
// empty or is for a different version of the value.
func contentType(version, tag string) string {
	of, typ, _ := strings.Cut(tag, " ")
	if of != version {
		return ""
	}
	return typ
}

func (s *Store) proof() state.Proof { return state.Proof{Level: s.level.Load().(state.Level)} }

// where returns the addresses of the servers, for messages. If the database is not number 0, the result also contains
// its number.
func (s settings) where() string {
	where := strings.Join(s.addresses, ", ")
	if s.db != 0 {
		where += ", database " + strconv.Itoa(s.db)
	}
	return cmp.Or(where, "an unknown address")
}
