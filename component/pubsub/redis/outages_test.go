package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

const pause = syscall.SIGSTOP

// traffic publishes and handles messages while the server fails, and notes what happened to each of them.
type traffic struct {
	broker *redis.Broker
	ctx    context.Context

	mu        sync.Mutex
	published map[string]bool // ids of messages whose publish succeeded
	failed    int             // number of publishes that failed
	handled   map[string]int  // how many times each message was handled, by id
}

// publish publishes until ctx ends.
func (r *traffic) publish(name string) {
	for i := 0; r.ctx.Err() == nil; i++ {
		id := name + strconv.Itoa(i)
		_, err := r.broker.Publish(r.ctx, pubsub.PublishRequest{Topic: "orders",
			Messages: []pubsub.Message{message(id)}})
		r.mu.Lock()
		if err == nil {
			r.published[id] = true
		} else {
			r.failed++
		}
		r.mu.Unlock()
		if err != nil {
			<-time.After(time.Millisecond) // without a server, a publish fails at once
		}
	}
}

// handle handles messages until ctx ends. Some of them fail at their first attempt.
func (r *traffic) handle(t *testing.T, ctx context.Context, s pubsub.Subscription) {
	for n := 0; ; n++ {
		list, err := s.Receive(ctx, 5)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("Receive: %v", err)
			}
			return
		}
		for i := range list {
			if n%9 == 3 && list[i].Attempt == 1 {
				if err := s.Settle(ctx, &list[i], pubsub.Failed); err != nil {
					t.Error(err)
				}
				continue
			}
			r.mu.Lock()
			r.handled[list[i].ID]++
			r.mu.Unlock()
			_ = s.Settle(ctx, &list[i], pubsub.Acknowledged) // may fail in an outage
		}
	}
}

// more waits until n more messages are published and one more message is handled.
func (r *traffic) more(t *testing.T, n int) {
	t.Helper()
	counts := func() (int, int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.published), len(r.handled)
	}
	published, handled := counts()
	testutil.Eventually(t, func() error {
		if p, h := counts(); p < published+n || h <= handled {
			return fmt.Errorf("%d messages were published and %d handled", p, h)
		}
		return nil
	})
}

func (r *traffic) failing(t *testing.T) {
	t.Helper()
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.failed
	}
	before := count()
	testutil.Eventually(t, func() error {
		if count() == before {
			return fmt.Errorf("no publish failed")
		}
		return nil
	})
}

// TestBroker_LosesNothingInOutages kills, pauses and fills the server while messages are published and handled. Every
// message whose publish succeeded is handled, and none stays pending.
func TestBroker_LosesNothingInOutages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills, pauses and fills a server repeatedly")
	}
	for name, outage := range map[string]func(*redistest.Server, *traffic){
		"Killed": func(s *redistest.Server, _ *traffic) { s.Restart() },
		"Paused": func(s *redistest.Server, r *traffic) {
			s.Signal(pause)
			r.failing(t)
			s.Signal(syscall.SIGCONT)
		},
		"Full": func(s *redistest.Server, r *traffic) {
			s.Do("config", "set", "maxmemory", "1mb")
			r.failing(t)
			s.Do("config", "set", "maxmemory", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.StartDurable(t, "--maxmemory-policy", "noeviction")
			b := open(t, "redisHost", srv.Address, "readTimeout", "300ms", "redisMaxRetries", "-1", "processingTimeout",
				"1s", "redeliverInterval", "100ms")
			publishing, stop := context.WithCancel(t.Context())
			defer stop()
			r := &traffic{broker: b, ctx: publishing, published: map[string]bool{}, handled: map[string]int{}}
			handling, end := context.WithCancel(t.Context())
			defer end()
			var publishers, handlers sync.WaitGroup
			for _, name := range []string{"a", "b"} {
				publishers.Go(func() { r.publish(name) })
				s := subscribe(t, b, "orders", "shop")
				handlers.Go(func() { r.handle(t, handling, s) })
			}
			for range 3 {
				r.more(t, 50)
				outage(srv, r)
			}
			r.more(t, 50)
			stop()
			publishers.Wait()
			testutil.Eventually(t, func() error {
				r.mu.Lock()
				defer r.mu.Unlock()
				missing := 0
				for id := range r.published {
					if r.handled[id] == 0 {
						missing++
					}
				}
				if missing > 0 {
					return fmt.Errorf("%d of %d messages were not handled", missing, len(r.published))
				}
				return nil
			})
			wantPending(t, srv, "orders", "shop", 0)
			end()
			handlers.Wait()
			twice := 0
			for _, n := range r.handled {
				if n > 1 {
					twice++
				}
			}
			t.Logf("%d messages published, %d failed, %d handled twice", len(r.published), r.failed, twice)
		})
	}
}

// TestSettle_AcknowledgementIsRepeated acknowledges a message while the server is down. When the server is up again,
// the acknowledgement reaches it.
func TestSettle_AcknowledgementIsRepeated(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address, "redisMaxRetries", "-1", "processingTimeout", "1h", "redeliverInterval",
		"50ms")
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("1"))
	d := receive(t, s)
	srv.Kill()
	if err := s.Settle(t.Context(), d, pubsub.Acknowledged); !fault.Is(err, fault.Unavailable) &&
		!fault.Is(err, fault.Indeterminate) {
		t.Errorf("an acknowledgement without a server: %v", err)
	}
	if err := s.Settle(t.Context(), d, pubsub.Acknowledged); !fault.Is(err, fault.NotFound) {
		t.Errorf("the second acknowledgement: %v", err)
	}
	srv.Run()
	srv.Wait()
	wantPending(t, srv, "orders", "shop", 0)
}

// TestReceive_AfterLongPause pauses the server for longer than processingTimeout, while messages wait in the queue.
// The leases of the queued messages then have ended, and these messages come again.
func TestReceive_AfterLongPause(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address, "processingTimeout", "500ms", "redeliverInterval", "50ms", "readTimeout",
		"100ms", "concurrency", "1")
	s := subscribe(t, b, "orders", "shop")
	// Another broker publishes, because a publish may take longer than the readTimeout of b.
	publish(t, open(t, "redisHost", srv.Address), "orders", message("1"), message("2"))
	first := receive(t, s)
	wantPending(t, srv, "orders", "shop", 2)
	srv.Signal(pause)
	released := time.Now().Add(600 * time.Millisecond)
	testutil.Eventually(t, func() error {
		if time.Now().Before(released) {
			return fmt.Errorf("the leases have not ended")
		}
		return nil
	})
	_ = s.Settle(t.Context(), first, pubsub.Acknowledged) // fails, and is repeated later
	srv.Signal(syscall.SIGCONT)
	d := receive(t, s)
	if d.ID != "2" {
		t.Errorf("received %s", d.ID)
	}
	settle(t, s, d, pubsub.Acknowledged)
	wantPending(t, srv, "orders", "shop", 0)
}
