package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// redisStore is one Redis server that syncs every write to disk before it answers.
type redisStore struct {
	*processes
	version string
	addr    string
	conns   []*redis.Client
}

func openRedis(ctx context.Context, s *settings, dir string) (store, error) {
	program, p, err := find("redis", s.redis, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	r := &redisStore{processes: p, version: firstLine(program, "--version"), addr: "127.0.0.1:" + ports[0]}
	if err := p.start("redis", program, "--port", ports[0], "--bind", "127.0.0.1", "--save", "", "--appendonly",
		"yes", "--appendfsync", "always", "--dir", p.dir); err != nil {
		return nil, err
	}
	if err := until(ctx, func() error {
		c, err := r.clients(1)
		if err != nil {
			return err
		}
		return c[0].save(ctx, "ready", "yes")
	}); err != nil {
		defer r.end()
		return nil, p.failed(err)
	}
	return r, nil
}

func (r *redisStore) name() string { return "redis" }
func (r *redisStore) about() string {
	version, _, _ := strings.Cut(r.version, " sha=")
	return version + ", one server, appendfsync always, client go-redis"
}

func (r *redisStore) end() {
	for _, c := range r.conns {
		_ = c.Close() // errors do not matter, because the server is killed next
	}
	r.processes.end()
}

func (r *redisStore) clients(n int) ([]client, error) {
	for i := len(r.conns); i < n; i++ {
		r.conns = append(r.conns, redis.NewClient(&redis.Options{Addr: r.addr, PoolSize: 1}))
	}
	out := make([]client, n)
	for i := range out {
		out[i] = &redisClient{r.conns[i]}
	}
	return out, nil
}

type redisClient struct{ c *redis.Client }

func (c *redisClient) save(ctx context.Context, key, value string) error {
	return c.c.Set(ctx, key, value, 0).Err()
}

// release is a script that deletes a lock if the value of the lock is the given owner. The script returns the number of
// deleted locks.
var release = redis.NewScript(
	`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`)

func (c *redisClient) lock(ctx context.Context, name string) error {
	granted, err := c.c.SetNX(ctx, name, "owner", lockTime).Result()
	if err != nil || !granted {
		return cmp.Or(err, errLocked)
	}
	n, err := release.Run(ctx, c.c, []string{name}, "owner").Int()
	if err != nil || n != 1 {
		return cmp.Or(err, errLocked)
	}
	return nil
}

func (c *redisClient) read(ctx context.Context, key string, _ bool) (string, error) {
	return c.c.Get(ctx, key).Result()
}
