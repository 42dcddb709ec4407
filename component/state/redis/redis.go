// Package redis is the component type state.redis: a state store in a Redis server, behind Redis Sentinel or in a
// Redis Cluster.
//
// It owns the layout of the data in Redis, which is that of Dapr's component, and the conversion of Redis' errors to
// fault codes. The goroutines are those of the client library; Close ends them.
//
// The value of a key in Redis is a hash with these fields:
//
//	data         the value
//	version      the ETag
//	first-write  exists if the key was created with first-write concurrency
//	quorate      the content type of a value that is not JSON, after the version of that value
//
// Dapr increments the version with each write. This package writes a random version, so that an ETag is never used
// twice, even if the key is deleted in between. If Dapr overwrites a value, the version in the field quorate no
// longer matches, and the content type is ignored.
package redis

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "state.redis"

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // of Fields
	Logger   *slog.Logger
	Now      func() time.Time // nil = time.Now
}

// Store implements state.Store and all optional interfaces.
type Store struct {
	client   goredis.UniversalClient
	settings settings
	now      func() time.Time
	script   *goredis.Script
	level    state.Level // of answers about single keys
}

// Open connects to Redis. While Redis cannot be reached, Open tries again until ctx ends. It returns fault.Invalid
// for settings that contradict each other, fault.Denied for refused credentials, and fault.Unavailable if Redis does
// not answer.
func Open(ctx context.Context, o Options) (*Store, error) {
	set, err := read(o.Metadata)
	if err != nil {
		return nil, err
	}
	set.warn(o.Logger)
	goredis.SetLogger(silent{}) // it is one for the process; errors are returned anyway
	s := &Store{client: set.client(), settings: set, script: goredis.NewScript(source), now: o.Now, level: state.Stale}
	if s.now == nil {
		s.now = time.Now
	}
	if err := s.connect(ctx); err != nil {
		_ = s.client.Close() // the cause is what matters
		return nil, err
	}
	return s, nil
}

// connect waits until Redis answers.
func (s *Store) connect(ctx context.Context) error {
	const pause = 200 * time.Millisecond
	var last error
	for {
		err := s.probe(ctx)
		switch {
		case fault.Is(err, fault.Timeout):
			// What failed before says more than that the time is over.
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

// probe checks that Redis answers, and sets the level of answers.
func (s *Store) probe(ctx context.Context) error {
	const op = "redis.Open"
	if err := s.client.Ping(ctx).Err(); err != nil {
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
		s.level = state.Linearizable
	}
	return nil
}

// Close implements state.Store.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !isClosed(err) {
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

// name returns the key in Redis for a stored key. If hash tags are on, the first part of the stored key, the
// application, determines the slot.
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

// stored is the inverse of name.
func (s *Store) stored(name string) (string, bool) {
	if !s.settings.hashTags {
		return name, true
	}
	owner, own, ok := strings.Cut(name, "}"+state.Separator)
	switch {
	case ok && strings.HasPrefix(owner, "{"):
		return owner[1:] + state.Separator + own, true
	case strings.Contains(name, state.Separator):
		return "", false // written without hash tags
	}
	return name, true
}

// tag returns the content of the field quorate; empty = none is needed.
func tag(version, contentType string) string {
	if contentType == "" {
		return ""
	}
	return version + " " + contentType
}

// contentType returns the content type of a value from its version and the field quorate.
func contentType(version, tag string) string {
	of, typ, _ := strings.Cut(tag, " ")
	if of != version {
		return ""
	}
	return typ
}

// listLevel is the level of listings: a scan is no snapshot.
const listLevel = state.Stale

func (s *Store) proof() state.Proof { return state.Proof{Level: s.level} }

// where names the server in messages.
func (s settings) where() string {
	where := strings.Join(s.addresses, ", ")
	if s.db != 0 {
		where += ", database " + strconv.Itoa(s.db)
	}
	return cmp.Or(where, "an unknown address")
}
