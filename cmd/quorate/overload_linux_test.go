package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/internal/testutil"
)

// load has the results of several clients. Each client saves values one after the other.
type load struct {
	mu       sync.Mutex
	accepted []time.Duration // duration of each successful save
	refused  int
	broken   int // number of connections that the server ended
	length   time.Duration
}

func (l *load) goodput() float64 { return float64(len(l.accepted)) / l.length.Seconds() }

func (l *load) add(took []time.Duration, refused, broken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, took...)
	l.refused += refused
	l.broken += broken
}

// saves runs clients that save values of size bytes for the given time, each over its own connection. A client whose
// save is refused tries again at once.
func (v *victim) saves(t *testing.T, clients, size int, length time.Duration) *load {
	t.Helper()
	out := &load{length: length}
	value := strings.Repeat("x", size)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	for i := range clients {
		body := fmt.Sprintf(`[{"key":"load%d","value":"%s"}]`, i, value)
		request := fmt.Sprintf("POST /v1.0/state/statestore HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			attackToken, len(body), body)
		all.Go(func() { v.saveUntil(ctx, request, out) })
	}
	all.Wait()
	return out
}

func (v *victim) saveUntil(ctx context.Context, request string, out *load) {
	var took []time.Duration
	refused, broken := 0, 0
	defer func() { out.add(took, refused, broken) }()
	var c net.Conn
	var from *bufio.Reader
	for ctx.Err() == nil {
		if c == nil {
			var err error
			if c, err = (&net.Dialer{}).DialContext(ctx, "tcp", v.api); err != nil {
				broken++
				continue
			}
			defer c.Close() //nolint:errcheck // the end of a client
			context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now().Add(5 * time.Second)) })
			from = bufio.NewReader(c)
		}
		start := time.Now()
		_, err := io.WriteString(c, request)
		var resp *http.Response
		if err == nil {
			resp, err = http.ReadResponse(from, nil)
		}
		if err != nil {
			broken++
			_ = c.Close()
			c = nil
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode == http.StatusNoContent {
			took = append(took, time.Since(start))
		} else {
			refused++
		}
		if resp.Close {
			_ = c.Close()
			c = nil
		}
	}
}

// TestOverload_GoodputOfSaves measures how many saves a node accepts from an increasing number of clients that do
// not pause. The figures depend on the machine, so most of them are only logged. QUORATE_LOAD_TIME is the duration
// of each step.
func TestOverload_GoodputOfSaves(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a real process")
	}
	length := 2 * time.Second
	if text := os.Getenv("QUORATE_LOAD_TIME"); text != "" {
		length = sure(time.ParseDuration(text))(t)
	}
	size := 64 << 10
	if text := os.Getenv("QUORATE_LOAD_SIZE"); text != "" {
		size = sure(strconv.Atoi(text))(t)
	}
	v := newLone(t)
	v.saves(t, 64, size, length/2) // warms up
	best := 0.0
	for _, clients := range []int{64, 128, 320, 2000, 64} {
		used := v.scrape(t)["process_cpu_seconds_total"]
		l := v.saves(t, clients, size, length)
		used = v.scrape(t)["process_cpu_seconds_total"] - used
		if len(l.accepted) == 0 {
			t.Fatalf("%d clients: nothing was accepted, %d refused, %d connections ended", clients, l.refused, l.broken)
		}
		slow := p99(l.accepted)
		now, _ := v.resident(t)
		t.Logf("%4d clients: %6.0f a second accepted, p50 %s, p99 %s; %d refused, %d connections ended, processor "+
			"%.1f s, resident %d MiB",
			clients, l.goodput(), l.accepted[len(l.accepted)/2].Round(time.Millisecond), slow.Round(time.Millisecond),
			l.refused, l.broken, used, now)
		best = max(best, l.goodput())
		if l.goodput() < 0.02*best { // other programs may take most of the machine during a step
			t.Errorf("%d clients: %.0f a second are accepted of %.0f", clients, l.goodput(), best)
		}
	}
}

// TestOverload_LargeSavesSucceed saves large values concurrently. A node that could save them one after the other
// must not refuse them because they arrive together.
func TestOverload_LargeSavesSucceed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	const size = 3_500_000
	for _, row := range []struct {
		name    string
		clients int
		least   int // minimum number of successful saves
		flags   []string
	}{
		{"16 with the default settings", 16, 16, nil},
		{"64 with the default settings", 64, 33, nil},
		{"1 with a small memory limit", 1, 1, []string{"--memory-limit", "128Mi"}},
		{"4 with a small memory limit", 4, 4, []string{"--memory-limit", "128Mi"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := newLone(t, row.flags...)
			body := `[{"key":"large%d","value":"` + strings.Repeat("x", size) + `"}]`
			c := runtimev1.NewDaprClient(v.dial(t))
			for name, save := range map[string]func(i int) error{
				"HTTP": func(i int) error {
					resp, text, err := v.ask("POST", "/v1.0/state/statestore", fmt.Sprintf(body, i), "dapr-api-token",
						attackToken)
					if err == nil && resp.StatusCode != http.StatusNoContent {
						err = fmt.Errorf("%s: %s", resp.Status, text)
					}
					return err
				},
				"gRPC": func(i int) error { return save(t.Context(), c, fmt.Sprint("large", i), size) },
			} {
				saved, slowest, err := together(row.clients, save)
				t.Logf("%s: %d of %d saved, the slowest took %s; %v", name, saved, row.clients, slowest, err)
				if saved < row.least {
					t.Errorf("%s: %d of %d saved: %v", name, saved, row.clients, err)
				}
				if slowest > testutil.Patience { // the timeout of a request is much shorter
					t.Errorf("%s: the slowest took %s", name, slowest)
				}
			}
		})
	}
}

// together calls save n times concurrently. It returns the number of successes, the duration of the slowest call, and
// one of the errors.
func together(n int, save func(i int) error) (saved int, slowest time.Duration, one error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			start := time.Now()
			err := save(i)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			if slowest = max(slowest, took); err != nil {
				one = err
			} else {
				saved++
			}
		})
	}
	all.Wait()
	return saved, slowest, one
}
