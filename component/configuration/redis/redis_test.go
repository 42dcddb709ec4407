package redis_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/configurationtest"
	"github.com/quorate/quorate/component/configuration/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func values(t *testing.T, pairs ...string) component.Values {
	t.Helper()
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	out, _, err := m.Check(component.Pos{}, "settings", redis.Fields())
	testutil.Must(t, err)
	return out
}

func open(t *testing.T, pairs ...string) *redis.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), redis.Options{Metadata: values(t, pairs...),
		Logger: slog.New(slog.DiscardHandler), Poll: 50 * time.Millisecond})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, s.Close()) })
	return s
}

// subject writes with another client, as an operator would.
type subject struct{ *redistest.Server }

// Set implements configurationtest.Subject.
func (s subject) Set(t *testing.T, items ...configuration.Item) {
	t.Helper()
	for _, i := range items {
		text := i.Value
		if i.Version != "" {
			text += "||" + i.Version
		}
		testutil.Must(t, s.Admin.Set(t.Context(), i.Key, text, 0).Err())
	}
}

// Delete implements configurationtest.Subject.
func (s subject) Delete(t *testing.T, keys ...string) {
	t.Helper()
	testutil.Must(t, s.Admin.Del(t.Context(), keys...).Err())
}

func TestStore_PassesSuite(t *testing.T) {
	configurationtest.Run(t, configurationtest.Traits{NoVersions: true},
		func(t *testing.T) (configuration.Store, configurationtest.Subject) {
			srv := redistest.StartDurable(t)
			return open(t, "redisHost", srv.Address), subject{srv}
		})
}

// TestStore_PassesSuiteWithoutNotifications uses a server that does not allow the command CONFIG, like the servers of
// cloud providers.
func TestStore_PassesSuiteWithoutNotifications(t *testing.T) {
	configurationtest.Run(t, configurationtest.Traits{NoVersions: true},
		func(t *testing.T) (configuration.Store, configurationtest.Subject) {
			srv := redistest.StartDurable(t, "--rename-command", "CONFIG", "")
			return open(t, "redisHost", srv.Address), subject{srv}
		})
}

func TestStore_LayoutOfDapr(t *testing.T) {
	srv := redistest.StartDurable(t)
	s := open(t, "redisHost", srv.Address)
	ctx := t.Context()
	for key, text := range map[string]string{"plain": "v", "versioned": "v||7", "cut": "v||7||rest", "empty": ""} {
		testutil.Must(t, srv.Admin.Set(ctx, key, text, 0).Err())
	}
	testutil.Must(t, srv.Admin.HSet(ctx, "hash", "a", "b").Err())
	for name, keys := range map[string][]string{"all": nil, "named": {"plain", "versioned", "cut", "empty", "hash"}} {
		found, err := s.Get(ctx, configuration.GetRequest{Keys: keys})
		testutil.Must(t, err)
		got := map[string]string{}
		for _, i := range found.Items {
			got[i.Key] = i.Value + " " + i.Version
		}
		if len(got) != 3 || got["plain"] != "v " || got["versioned"] != "v 7" || got["cut"] != "v 7" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStore_LeavesOutWhatIsNotUTF8(t *testing.T) {
	const keys = "*2\r\n$1\r\n0\r\n*2\r\n$5\r\nk\xffbad\r\n$4\r\ngood\r\n"
	for name, c := range map[string]struct {
		value, want string
		warnings    int
	}{
		"key":   {"$1\r\nv\r\n", "good=v", 1},
		"value": {"$2\r\nv\xff\r\n", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := redistest.StartHostile(t, map[string]string{"scan": keys, "get": c.value}, false)
			var log testutil.Output
			s, err := redis.Open(t.Context(), redis.Options{Metadata: values(t, "redisHost", h.Address),
				Logger: slog.New(slog.NewTextHandler(&log, nil))})
			testutil.Must(t, err)
			defer func() { testutil.Must(t, s.Close()) }()
			for range 2 {
				found, err := s.Get(t.Context(), configuration.GetRequest{})
				testutil.Must(t, err)
				got := ""
				for _, i := range found.Items {
					got += i.Key + "=" + i.Value
				}
				if got != c.want {
					t.Errorf("read %q, want %q", got, c.want)
				}
			}
			if n := strings.Count(log.String(), "is left out"); n != c.warnings {
				t.Errorf("%d warnings in the log, want %d:\n%s", n, c.warnings, log.String())
			}
		})
	}
}

// TestStore_NewestValueIsDeliveredAfterRestart changes items while no subscriber is connected.
func TestStore_NewestValueIsDeliveredAfterRestart(t *testing.T) {
	srv := redistest.StartDurable(t)
	subject{srv}.Set(t, configuration.Item{Key: "a", Value: "1"}, configuration.Item{Key: "b", Value: "1"})
	// Only notifications and the read after a reconnect deliver changes: the next poll is a minute away.
	s, err := redis.Open(t.Context(), redis.Options{Metadata: values(t, "redisHost", srv.Address),
		Logger: slog.New(slog.DiscardHandler)})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, s.Close()) })
	seen := configurationtest.Listen(t, s, "a", "b")
	subject{srv}.Set(t, configuration.Item{Key: "a", Value: "2"})
	seen.Value(t, "a", "2")
	srv.Restart()
	subject{srv}.Set(t, configuration.Item{Key: "a", Value: "3"})
	subject{srv}.Delete(t, "b")
	seen.Value(t, "a", "3")
	seen.Until(t, "b deleted", func() bool { return seen.Deleted["b"] })
	subject{srv}.Set(t, configuration.Item{Key: "b", Value: "4"}) // the restarted server reports changes again
	seen.Value(t, "b", "4")
}

func TestStore_ExpiryIsReported(t *testing.T) {
	srv := redistest.StartDurable(t)
	s := open(t, "redisHost", srv.Address)
	subject{srv}.Set(t, configuration.Item{Key: "a", Value: "1"})
	seen := configurationtest.Listen(t, s)
	testutil.Must(t, srv.Admin.PExpire(t.Context(), "a", 50*time.Millisecond).Err())
	seen.Until(t, "expiry of a", func() bool { return seen.Deleted["a"] })
}

// TestStore_KeepsReportsOfOthers checks that the store extends notify-keyspace-events of the server, and does not
// replace it.
func TestStore_KeepsReportsOfOthers(t *testing.T) {
	srv := redistest.StartDurable(t, "--notify-keyspace-events", "Em")
	s := open(t, "redisHost", srv.Address)
	configurationtest.Listen(t, s)
	got := srv.Admin.ConfigGet(t.Context(), "notify-keyspace-events").Val()["notify-keyspace-events"]
	for _, c := range "EmKA" {
		if !strings.ContainsRune(got, c) {
			t.Errorf("the setting is %q", got)
		}
	}
}

// With readTimeout -1, a paused server delays neither the end of a request nor Close.
func TestStore_PausedServerWithoutReadTimeout(t *testing.T) {
	srv := redistest.StartDurable(t)
	s := open(t, "redisHost", srv.Address, "readTimeout", "-1", "writeTimeout", "-1")
	srv.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Subscribe(ctx, configuration.SubscribeRequest{}); !fault.Is(err, fault.Timeout) {
		t.Errorf("Subscribe: %v", err)
	}
	if _, err := s.Get(ctx, configuration.GetRequest{}); !fault.Is(err, fault.Timeout) {
		t.Errorf("Get: %v", err)
	}
	testutil.Must(t, s.Close())
}

func TestOpen_Unreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	address := l.Addr().String()
	testutil.Must(t, l.Close())
	_, err = redis.Open(t.Context(), redis.Options{Metadata: values(t, "redisHost", address, "redisMaxRetries", "-1"),
		Logger: slog.New(slog.DiscardHandler)})
	statetest.WantFault(t, err, fault.Unavailable, address)
}
