// Package redis implements the component type lock.redis. It keeps locks in a Redis server, in the same form as Dapr's
// component.
//
// A lock is a Redis string with an expiry, which Redis measures by its own clock. The key is
// lock||{prefix}||{resource}, and the value is the owner. Fencing tokens, renewal and waiting are not supported. Only
// the client library starts goroutines, which Close ends.
package redis

import (
	"context"
	"log/slog"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	redisstate "github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "lock.redis"

// Fields returns the metadata fields of the component type. Names and defaults are the same as in Dapr.
func Fields() []component.Field { return redisstate.ClientFields() }

// unlock is a Lua script that removes the lock KEYS[1] if ARGV[1] owns it. It returns 1 if the lock was removed, 0 if
// there is no lock, and -1 if the lock has another owner.
const unlock = `local owner = redis.call("GET", KEYS[1])
if not owner then return 0 end
if owner ~= ARGV[1] then return -1 end
redis.call("DEL", KEYS[1])
return 1`

// largestReply is the maximum size in bytes of a text in a reply of Redis. The largest reply is that to INFO, which
// Open sends; lock commands have short replies.
const largestReply = 256 << 10

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Logger   *slog.Logger
}

// Store implements lock.Store.
type Store struct{ client *redisstate.Client }

var _ lock.Store = (*Store)(nil)

// Open connects to Redis. While Redis is not available, Open retries until ctx ends.
//
// Open returns fault.Invalid for a Redis Cluster, and for a server that has replicas but is used without Redis
// Sentinel, because a failover could silently lose locks. Dapr also refuses such servers.
func Open(ctx context.Context, o Options) (*Store, error) {
	if strings.EqualFold(o.Metadata.Text("redisType"), "cluster") {
		return nil, &fault.Error{Code: fault.Invalid, Op: "redis.Open",
			Msg:  "locks in a Redis Cluster are not supported: a failover loses locks",
			Hint: "use one Redis server, or lock.raft, which never loses a lock"}
	}
	client, err := redisstate.Dial(ctx, redisstate.Options{Metadata: o.Metadata, Logger: o.Logger,
		LargestValue: largestReply})
	if err != nil {
		return nil, err
	}
	if err := refuseReplicas(ctx, client); err != nil {
		_ = client.Close() // the error of refuseReplicas is more useful
		return nil, err
	}
	o.Logger.Info("locks in Redis have no fencing token, so they protect nothing against a paused process",
		"hint", "use lock.raft where that matters")
	return &Store{client}, nil
}

func refuseReplicas(ctx context.Context, client *redisstate.Client) error {
	if client.Sentinel() {
		return nil
	}
	replicated, err := client.Replicated(ctx)
	if err == nil && replicated {
		err = &fault.Error{Code: fault.Invalid, Op: "redis.Open",
			Msg:  "the Redis server has replicas: a failover loses locks",
			Hint: "use a server without replicas, failover with Sentinel, or lock.raft, which never loses a lock"}
	}
	return err
}

// nameOf returns the key of a lock in Redis.
func nameOf(k lock.Key) string {
	if k.Prefix == "" {
		return "lock" + state.Separator + k.Resource
	}
	return "lock" + state.Separator + k.Prefix + state.Separator + k.Resource
}

// TryLock implements lock.Store. The grant has no token. TryLock returns fault.TooLarge if the claim exceeds a limit
// (see lock.Claim.Check).
func (s *Store) TryLock(ctx context.Context, c lock.Claim) (lock.Grant, error) {
	if err := c.Check("redis.TryLock"); err != nil {
		return lock.Grant{}, err
	}
	name := nameOf(c.Key)
	answer, err := s.client.Write(ctx, "redis.TryLock", name, "set", name, c.Owner, "nx", "px",
		max(c.Expiry.Milliseconds(), 1))
	if err != nil || answer == nil {
		return lock.Grant{}, err
	}
	return lock.Grant{Granted: true, Expiry: c.Expiry}, nil
}

// Unlock implements lock.Store. It ignores r.Token.
func (s *Store) Unlock(ctx context.Context, r lock.Release) (lock.Status, error) {
	const op = "redis.Unlock"
	name := nameOf(r.Key)
	answer, err := s.client.Write(ctx, op, name, "eval", unlock, 1, name, r.Owner)
	switch {
	case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
		return lock.InternalError, &fault.Error{Code: fault.Invalid, Op: op, Key: name,
			Msg: "the key of the lock holds another Redis type than a string", Hint: "delete it in Redis", Err: err}
	case err != nil:
		return lock.InternalError, err
	}
	switch answer {
	case int64(1):
		return lock.Unlocked, nil
	case int64(0):
		return lock.DoesNotExist, nil
	}
	return lock.BelongsToOthers, nil
}

// Close implements lock.Store.
func (s *Store) Close() error { return s.client.Close() }
