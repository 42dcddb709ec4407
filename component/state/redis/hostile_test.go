package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// hostile is a Redis server that answers some commands with bytes of the test, and the others as Redis does.
type hostile struct {
	address string
	answers map[string]string // by command in lower case
	endless bool              // repeats such an answer until the client closes the connection

	asked, subscribed atomic.Int64 // such commands
}

func newHostile(t *testing.T, answers map[string]string) *hostile {
	h := &hostile{answers: answers}
	h.address = statetest.Hostile(t, h.serve)
	return h
}

func (h *hostile) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		name := strings.ToLower(words[0])
		answer, evil := h.answers[name]
		switch {
		case evil:
			h.asked.Add(1)
			if name == "subscribe" {
				h.subscribed.Add(1)
			}
			for _, err = io.WriteString(conn, answer); err == nil && h.endless; {
				_, err = io.WriteString(conn, answer)
			}
		case name == "ping":
			_, _ = io.WriteString(conn, "+PONG\r\n")
		case name == "info":
			text := "role:master\r\nconnected_slaves:0\r\n"
			_, _ = fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(text), text)
		case name == "pttl":
			_, _ = io.WriteString(conn, ":-1\r\n")
		default:
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

// A hostile server makes the client allocate little, and does not end the process.
func TestStore_HostileReplies(t *testing.T) {
	const most = 8 << 20 // bytes that one call may allocate
	for name, c := range map[string]struct {
		answer  string
		endless bool
	}{
		"huge string":       {"$2000000000\r\n", false},
		"largest string":    {"$67108864\r\n", false}, // its bytes never come
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
			h := newHostile(t, map[string]string{"hmget": c.answer, "hget": c.answer, "get": c.answer, "scan": c.answer,
				"evalsha": c.answer, "eval": c.answer, "json.get": c.answer})
			h.endless = c.endless
			store := opened(t, "redisHost", h.address, "readTimeout", "500ms", "redisMaxRetries", "0")
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
			if h.asked.Load() < 4 {
				t.Errorf("the server was called %d times", h.asked.Load())
			}
		})
	}
}

// The limit of a value is that of the component, and the error names it.
func TestStore_ReadsValuesUpToTheLimit(t *testing.T) {
	answer := func(n int) string { return "*3\r\n$1\r\n7\r\n$-1\r\n$" + strconv.Itoa(n) + "\r\n" }
	const version = "$1\r\n7\r\n"
	h := newHostile(t, map[string]string{"hmget": answer(1<<20) + strings.Repeat("1", 1<<20) + "\r\n",
		"hget": version})
	store, err := open(t, redis.Options{Metadata: metadata(t, "redisHost", h.address), LargestValue: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if item, err := statetest.Get(t.Context(), store, "a||k"); err != nil || len(item.Value) != 1<<20 {
		t.Errorf("%d bytes, %v", len(item.Value), err)
	}
	h = newHostile(t, map[string]string{"hmget": answer(1<<20 + 1), "hget": version})
	store, err = open(t, redis.Options{Metadata: metadata(t, "redisHost", h.address), LargestValue: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	_, err = statetest.Get(t.Context(), store, "a||k")
	statetest.WantFault(t, err, fault.TooLarge, "1048576", "maxValueSize")
	if strings.Count(err.Error(), "1048576") != 1 {
		t.Errorf("the error gives its cause twice: %v", err)
	}
}

// go-redis reads messages of sentinels in a goroutine of its own, where a panic would end the process.
func TestStore_HostileSentinel(t *testing.T) {
	master := newHostile(t, nil)
	host, port, _ := net.SplitHostPort(master.address)
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
			sentinel := newHostile(t, map[string]string{"sentinel": c.address, "subscribe": c.message})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			store, err := redis.Open(ctx, redis.Options{Logger: slog.New(slog.DiscardHandler),
				Metadata: metadata(t, "redisHost", sentinel.address,
					"failover", "true", "sentinelMasterName", "m", "readTimeout", "500ms", "redisMaxRetries", "0")})
			if (err == nil) != c.works {
				t.Errorf("Open: %v", err)
			}
			if err != nil {
				return
			}
			// The library subscribes again after it has refused a message.
			testutil.Eventually(t, func() error {
				if n := sentinel.subscribed.Load(); n < 2 {
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
