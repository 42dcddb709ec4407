package redis

import (
	"context"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// listenPing is the time without a message after which Listen checks the connection.
const listenPing = 10 * time.Second

// Client sends commands to Redis on behalf of components of other building blocks, such as locks. It has the same
// settings, retries and errors as a Store. It is safe for concurrent use.
type Client struct{ store *Store }

// Dial connects to Redis, as Open does.
func Dial(ctx context.Context, o Options) (*Client, error) {
	s, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Client{s}, nil
}

// ClientFields returns the metadata fields for a component that uses Redis but is not a state store. These are the
// fields of state.redis. In the fields that only a state store supports, Refused is set.
func ClientFields() []component.Field {
	out := Fields()
	for i, f := range out {
		switch f.Name {
		case "clusterHashTags", "replicas", "replicaTimeout", "ttlInSeconds", "queryIndexes":
			out[i].Refused = "only state.redis has this setting; remove it"
		}
	}
	return out
}

// Write sends a command that changes a key, and returns the response. A nil response is not an error. Write repeats
// the command only if Redis certainly did not execute it. It returns fault.Indeterminate if Redis may have executed
// it.
func (c *Client) Write(ctx context.Context, op, key string, args ...any) (any, error) {
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		cmd := goredis.NewCmd(ctx, args...)
		err := c.store.client.Process(ctx, once{cmd})
		switch {
		case err == nil || err == goredis.Nil: //nolint:errorlint // the library returns it as it is
			return cmd.Val(), nil
		case !again(err) || attempt >= c.store.settings.retries:
			return nil, c.store.failed(op, key, err, true)
		}
		pause := min(c.store.settings.minPause<<min(attempt, 16), c.store.settings.maxPause)
		select {
		case <-ctx.Done():
			return nil, c.store.failed(op, key, err, true)
		case <-time.After(pause):
		}
	}
}

// Replicated reports whether the server has replicas. It returns false if the Redis user has no permission for the
// command INFO.
func (c *Client) Replicated(ctx context.Context) (bool, error) {
	const op = "redis.Replicated"
	info, err := c.store.client.Info(ctx, "replication").Result()
	switch {
	case goredis.HasErrorPrefix(err, "NOPERM"):
		return false, nil
	case err != nil:
		return false, c.store.failed(op, "", err, false)
	}
	return strings.Contains(info, "connected_slaves:") && !strings.Contains(info, "connected_slaves:0"), nil
}

// Sentinel reports whether the address of the server comes from sentinels.
func (c *Client) Sentinel() bool { return c.store.settings.kind == sentinel }

// Close closes the connections.
func (c *Client) Close() error {
	return fault.Wrap(c.store.Close(), "redis.Close", "closing the connections to Redis")
}
