package redis

import (
	"context"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Command is a Redis command: its name, followed by its arguments. One of the arguments is the key that the command
// reads or writes.
type Command []any

// Reply is the response to a command, or its error. Value is nil if Redis had nothing to return.
type Reply struct {
	Value any
	Err   error
}

// WriteAll sends commands that all change the same key. It sends them in order and in one round trip. It repeats them
// only if Redis certainly executed none of them. If Redis may have executed a command, the code of the command's error
// is fault.Indeterminate.
func (c *Client) WriteAll(ctx context.Context, op, key string, commands ...Command) []Reply {
	for attempt := 0; ; attempt++ {
		out, repeatable := c.sendAll(ctx, op, key, commands, true)
		if !repeatable || attempt >= c.store.settings.retries {
			return out
		}
		if cluster, ok := c.store.client.(*goredis.ClusterClient); ok {
			cluster.ReloadState(ctx) // a replica may have become the master
		}
		select {
		case <-ctx.Done():
			return out
		case <-time.After(min(c.store.settings.minPause<<min(attempt, 16), c.store.settings.maxPause)):
		}
	}
}

// ReadAll sends several commands in one round trip. The commands must not change data, because the library may repeat
// them.
func (c *Client) ReadAll(ctx context.Context, op, key string, commands ...Command) []Reply {
	out, _ := c.sendAll(ctx, op, key, commands, false)
	return out
}

// sendAll sends commands in one round trip. Set write if the commands change data, so that the library does not repeat
// them. repeatable is true if Redis executed none of the commands and they may succeed when they are sent again.
func (c *Client) sendAll(ctx context.Context, op, key string, commands []Command, write bool) (out []Reply,
	repeatable bool,
) {
	out = make([]Reply, len(commands))
	if err := given(ctx, op); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out, false
	}
	pipe := c.store.client.Pipeline()
	sent := make([]*goredis.Cmd, len(commands))
	for i, args := range commands {
		sent[i] = command(ctx, key, args)
		if write {
			_ = pipe.Process(ctx, once{sent[i]})
		} else {
			_ = pipe.Process(ctx, sent[i])
		}
	}
	execute(ctx, pipe)
	repeatable = len(sent) > 0
	for i, cmd := range sent {
		err := cmd.Err()
		repeatable = repeatable && err != nil && err != goredis.Nil && again(err) //nolint:errorlint // as it is
		out[i].Value, out[i].Err = c.result(op, key, cmd, write)
	}
	return out, repeatable
}

// Wait sends a blocking command once and returns the reply. It waits at most until the deadline of ctx. A blocking
// command keeps its connection busy, so c should be a client from the method Waiting.
func (c *Client) Wait(ctx context.Context, op, key string, args Command) (any, error) {
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	cmd := command(ctx, key, args)
	_ = c.store.client.Process(ctx, once{cmd}) // the command has the error
	return c.result(op, key, cmd, false)
}

// command converts args to a command of the client library, and sets which argument is the key. A client of a Redis
// Cluster selects the server by this key.
func command(ctx context.Context, key string, args Command) *goredis.Cmd {
	cmd := goredis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(int8(max(slices.Index(args, any(key)), 0)))
	return cmd
}

func (c *Client) result(op, key string, cmd *goredis.Cmd, write bool) (any, error) {
	err := cmd.Err()
	switch {
	case err == nil:
		return cmd.Val(), nil
	case err == goredis.Nil: //nolint:errorlint // the library returns it as it is
		return nil, nil
	}
	return nil, c.store.failed(op, key, err, write)
}

// Waiting returns a client for blocking commands (see Wait). It uses the same servers as c, but has its own
// connections, up to the given number. It connects at its first command. The caller must close it.
func (c *Client) Waiting(connections int) *Client {
	set := c.store.settings
	set.poolSize, set.minIdle = connections, 0
	return &Client{newStore(set, nil)}
}

// Patience returns how long the client waits for an answer of Redis. This is the setting readTimeout, or 3 s if
// readTimeout is disabled.
func (c *Client) Patience() time.Duration {
	if t := c.store.settings.read; t > 0 {
		return t
	}
	return 3 * time.Second
}

// Where returns the addresses of the servers, for messages.
func (c *Client) Where() string { return c.store.settings.where() }
