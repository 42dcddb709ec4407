package redis_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// A hostile server cannot make the client allocate much memory, or end the process.
func TestStore_HostileReplies(t *testing.T) {
	const most = 8 << 20 // bytes that one call may allocate
	for name, c := range map[string]struct {
		answer  string
		endless bool
	}{
		"huge string":       {"$2000000000\r\n", false},
		"largest string":    {"$67108864\r\n", false}, // the bytes of the string never arrive
		"huge array":        {"*2000000000\r\n", false},
		"array of no sense": {"*9223372036854775807\r\n", false},
		"map of no sense":   {"%4611686018427387905\r\n", false},
		"short array":       {"*0\r\n", false},
		"line without end":  {strings.Repeat("+", 64<<10), true},
		"nested arrays":     {strings.Repeat("*1\r\n", 16<<10), true},
		"attributes":        {strings.Repeat("|0\r\n", 16<<10), true},
		"many replies":      {strings.Repeat("+OK\r\n", 16<<10), true},
		"null":              {"$-1\r\n", false},
		"number":            {":9223372036854775807\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			answers := map[string]string{}
			names := []string{"hmget", "hget", "get", "scan", "evalsha", "eval", "json.get"}
			for _, name := range names {
				answers[name] = c.answer
			}
			h := redistest.StartHostile(t, answers, c.endless)
			store := opened(t, "redisHost", h.Address, "readTimeout", "500ms", "redisMaxRetries", "0")
			for call, f := range map[string]func(context.Context) error{
				"Get": func(ctx context.Context) error {
					_, err := store.Get(ctx, state.GetRequest{Key: "a||k"})
					return err
				},
				"BulkGet": func(ctx context.Context) error {
					_, err := store.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"a||k", "a||l"}})
					return err
				},
				"List": func(ctx context.Context) error {
					_, err := store.List(ctx, state.ListRequest{Prefix: "a||"})
					return err
				},
				"Set": func(ctx context.Context) error {
					_, err := store.Set(ctx, state.SetRequest{Items: []state.Write{statetest.Put("a||k", "1")}})
					return err
				},
			} {
				statetest.Bounded(t, most, func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					if err := f(ctx); err == nil || fault.CodeOf(err) == "" {
						t.Errorf("%s: %v", call, err)
					}
				})
			}
			if n := h.Called(names...); n < 4 {
				t.Errorf("the server was called %d times", n)
			}
		})
	}
}

// A value may be as large as the limit of the component. The error for a larger value names the limit.
func TestStore_ReadsValuesUpToTheLimit(t *testing.T) {
	answer := func(n int) string { return "*3\r\n$1\r\n7\r\n$-1\r\n$" + strconv.Itoa(n) + "\r\n" }
	const version = "$1\r\n7\r\n"
	h := redistest.StartHostile(t, map[string]string{"hmget": answer(1<<20) + strings.Repeat("1", 1<<20) + "\r\n",
		"hget": version}, false)
	store, err := open(t, redis.Options{Metadata: metadata(t, "redisHost", h.Address), LargestValue: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if item, err := statetest.Get(t.Context(), store, "a||k"); err != nil || len(item.Value) != 1<<20 {
		t.Errorf("%d bytes, %v", len(item.Value), err)
	}
	h = redistest.StartHostile(t, map[string]string{"hmget": answer(1<<20 + 1), "hget": version}, false)
	store, err = open(t, redis.Options{Metadata: metadata(t, "redisHost", h.Address), LargestValue: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	_, err = statetest.Get(t.Context(), store, "a||k")
	statetest.WantFault(t, err, fault.TooLarge, "1048576", "maxValueSize")
	if strings.Count(err.Error(), "1048576") != 1 {
		t.Errorf("the error gives its cause twice: %v", err)
	}
}

// A hostile message of a sentinel does not end the process, although go-redis reads such messages in its own
// goroutine.
func TestStore_HostileSentinel(t *testing.T) {
	master := redistest.StartHostile(t, nil, false)
	host, port, _ := net.SplitHostPort(master.Address)
	pair := fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	for name, c := range map[string]struct {
		address, message string
		works            bool
	}{
		"no address":         {"*0\r\n", "", false},
		"half an address":    {"*1\r\n$1\r\na\r\n", "", false},
		"address of numbers": {"*2\r\n:1\r\n*0\r\n", "", false},
		"empty message":      {pair, "*0\r\n", true},
		"message of numbers": {pair, "*3\r\n:1\r\n:2\r\n:3\r\n", true},
		"short switch":       {pair, "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$2\r\nm \r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			sentinel := redistest.StartHostile(t, map[string]string{"sentinel": c.address, "subscribe": c.message},
				false)
			limit, readTimeout := time.Second, "500ms"
			if c.works { // then neither of them is reached
				limit, readTimeout = time.Minute, "30s"
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			store, err := redis.Open(ctx, redis.Options{Logger: slog.New(slog.DiscardHandler),
				Metadata: metadata(t, "redisHost", sentinel.Address,
					"failover", "true", "sentinelMasterName", "m", "readTimeout", readTimeout, "redisMaxRetries",
					"0")})
			if (err == nil) != c.works {
				t.Errorf("Open: %v", err)
			}
			if err != nil {
				return
			}
			// The library subscribes again after it has refused a message.
			testutil.Eventually(t, func() error {
				if n := sentinel.Called("subscribe"); n < 2 {
					return fmt.Errorf("%d subscriptions", n)
				}
				return nil
			})
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// If Redis refuses WAIT, for example because the server became a replica, it has still executed the write.
func TestStore_WriteWithoutAcknowledgementsIsIndeterminate(t *testing.T) {
	for name, answer := range map[string]string{
		"became a replica": "-UNBLOCKED force unblock from blocking operation, instance state changed\r\n",
		"no permission":    "-NOPERM this user has no permissions to run the 'wait' command\r\n",
		"a replica":        "-READONLY You can't write against a read only replica.\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := redistest.StartHostile(t, map[string]string{"evalsha": ":0\r\n", "wait": answer}, false)
			store := opened(t, "redisHost", h.Address, "replicas", "1")
			err := statetest.Set(t.Context(), store, statetest.Put("a||k", "1"))
			statetest.WantFault(t, err, fault.Indeterminate, "may be lost")
			if n := h.Called("evalsha", "eval"); n != 1 {
				t.Errorf("the write was sent %d times", n)
			}
		})
	}
}
