package redis_test

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state/redis/redistest"
)

// patience is the time limit for tests that could hang. No test measures this time.
const patience = 2 * time.Minute

// age shortens the expiry time of all keys of a server by d. Keys that expire in less than d are removed.
func age(ctx context.Context, s *redistest.Server, d time.Duration) error {
	const script = `
for _, key in ipairs(redis.call("KEYS", "*")) do
  local left = redis.call("PTTL", key)
  if left > 0 then redis.call("PEXPIRE", key, left - ARGV[1]) end
end`
	err := s.Admin.Eval(ctx, script, nil, d.Milliseconds()).Err()
	if err == goredis.Nil {
		return nil
	}
	return err
}
