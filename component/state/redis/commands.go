package redis

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/internal/fault"
)

// Texts reads several strings in one round trip. It omits missing keys, and keys whose Redis type is not string.
func (c *Client) Texts(ctx context.Context, op string, keys []string) (map[string]string, error) {
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	pipe := c.store.client.Pipeline()
	answers := make([]*goredis.StringCmd, len(keys))
	for i, k := range keys {
		answers[i] = pipe.Get(ctx, k)
	}
	execute(ctx, pipe)
	out := make(map[string]string, len(keys))
	for i, a := range answers {
		text, err := a.Result()
		switch {
		case err == nil:
			out[keys[i]] = text
		case err == goredis.Nil || goredis.HasErrorPrefix(err, "WRONGTYPE"): //nolint:errorlint // returned as it is
		default:
			return nil, c.store.failed(op, keys[i], err, false)
		}
	}
	return out, nil
}

// The bounds of Keys.
const (
	maxKeys     = 100_000
	maxKeyBytes = 16 << 20 // total size of all keys
)

// errManyKeys is the error of a scan that has found more keys than Keys may return.
var errManyKeys = errors.New("redis: too many keys")

// Keys returns the keys of all strings, in no particular order. A key that is created or deleted during the call
// may be missing. Keys returns fault.TooLarge if there are more than 100,000 keys, or if the keys have more than 16
// MiB.
func (c *Client) Keys(ctx context.Context, op string) ([]string, error) {
	const portion = 1000
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	seen, size := map[string]bool{}, 0 // a scan may return a key twice
	scan := func(ctx context.Context, from *goredis.Client) error {
		cursor := uint64(0)
		for {
			keys, next, err := from.ScanType(ctx, cursor, "*", portion, "string").Result()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, k := range keys {
				if !seen[k] {
					seen[k], size = true, size+len(k)
				}
			}
			many := len(seen) > maxKeys || size > maxKeyBytes
			mu.Unlock()
			if many {
				return errManyKeys
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	var err error
	switch client := c.store.client.(type) {
	case *goredis.Client:
		err = scan(ctx, client)
	case *goredis.ClusterClient:
		err = client.ForEachMaster(ctx, scan) // calls scan concurrently
	}
	switch {
	case errors.Is(err, errManyKeys):
		return nil, &fault.Error{Code: fault.TooLarge, Op: op,
			Msg:  "the database has more than 100000 strings, or their keys more than 16 MiB",
			Hint: "request single keys, or use a database of its own"}
	case err != nil:
		return nil, c.store.failed(op, "", err, false)
	}
	return slices.Collect(maps.Keys(seen)), nil
}

// Cluster reports whether the servers are a Redis Cluster.
func (c *Client) Cluster() bool { return c.store.settings.kind == cluster }

// Database returns the number of the database.
func (c *Client) Database() int { return c.store.settings.db }

// Notify enables the keyspace notifications of the server. Notifications that are already enabled stay enabled. If the
// server does not allow the change, Notify returns fault.Denied or fault.Invalid.
func (c *Client) Notify(ctx context.Context) error {
	const op, name = "redis.Notify", "notify-keyspace-events"
	ctx, cancel := context.WithTimeout(ctx, listenPing) // a limit even if readTimeout is -1
	defer cancel()
	settings, err := c.store.client.ConfigGet(ctx, name).Result()
	now := settings[name]
	if err == nil && strings.Contains(now, "K") && (strings.Contains(now, "A") ||
		strings.Contains(now, "$") && strings.Contains(now, "g") && strings.Contains(now, "x") &&
			strings.Contains(now, "e")) {
		return nil
	}
	if err == nil {
		err = c.store.client.ConfigSet(ctx, name, now+"KA").Err()
	}
	if err == nil {
		return nil
	}
	failed := c.store.failed(op, "", err, false)
	if fault.Is(failed, fault.Internal) { // an unknown command, on servers of a cloud
		return &fault.Error{Code: fault.Denied, Op: op, Err: err, Msg: "the server does not allow CONFIG SET " + name}
	}
	return failed
}

// Listen subscribes to the channels that match a pattern. It calls ready once the server has confirmed the
// subscription, and then message(channel) for each message that arrives. It returns when ctx ends or the connection is
// lost.
func (c *Client) Listen(ctx context.Context, pattern string, ready func(), message func(channel string)) error {
	const op = "redis.Listen"
	// The client does not reconnect within Receive, so a lost connection is not hidden.
	sub := c.store.client.PSubscribe(ctx, pattern)
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	for first := true; ; {
		// A ping shows that the connection still works.
		got, err := sub.ReceiveTimeout(ctx, listenPing)
		if err != nil && timedOut(err) && ctx.Err() == nil && !first {
			if err = sub.Ping(ctx); err == nil {
				got, err = sub.ReceiveTimeout(ctx, listenPing)
			}
		}
		if err != nil {
			return c.store.failed(op, "", err, false)
		}
		switch m := got.(type) {
		case *goredis.Subscription:
			if !first {
				return fault.New(fault.Unavailable, op, "the connection to Redis was lost")
			}
			first = false
			ready()
		case *goredis.Message:
			message(m.Channel)
		}
	}
}
