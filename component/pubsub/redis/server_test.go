package redis_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/pubsub/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/internal/testutil"
)

// pending returns how many messages of a topic are delivered and not acknowledged.
func pending(s *redistest.Server, topic, group string) int64 {
	s.T.Helper()
	summary, err := s.Admin.XPending(s.T.Context(), topic, group).Result()
	testutil.Must(s.T, err)
	return summary.Count
}

// startSentinel starts a master, a replica and a sentinel that watches them under the name main.
func startSentinel(t *testing.T) (sentinel, master, replica *redistest.Server) {
	t.Helper()
	master = redistest.StartDurable(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Address)
	replica = redistest.StartDurable(t, "--replicaof", host+" "+port)
	testutil.Eventually(t, func() error {
		info, err := replica.Admin.Info(t.Context(), "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	})
	sentinel = redistest.StartWithFile(t, "sentinel monitor main "+host+" "+port+" 1\n"+
		"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n", "--sentinel")
	testutil.Eventually(t, func() error { // the sentinel must know the replica before it can promote the replica
		n := sentinel.Do("sentinel", "replicas", "main").([]any)
		if len(n) != 1 {
			return fmt.Errorf("%d replicas", len(n))
		}
		return nil
	})
	return sentinel, master, replica
}

func checked(pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	values, _, err := m.Check(component.Pos{}, "topics", redis.Fields())
	return values, err
}

// options returns the settings of a broker that logs to the test.
func options(t *testing.T, pairs ...string) redis.Options {
	t.Helper()
	values, err := checked(pairs...)
	testutil.Must(t, err)
	return redis.Options{Metadata: values, Logger: slog.New(slog.NewTextHandler(&logOf{t: t}, nil))}
}

func open(t *testing.T, pairs ...string) *redis.Broker {
	t.Helper()
	b, err := redis.Open(t.Context(), options(t, pairs...))
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, b.Close()) })
	return b
}

// logOf writes to the log of a test.
type logOf struct{ t *testing.T }

func (l *logOf) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
