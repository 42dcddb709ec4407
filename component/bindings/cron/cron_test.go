package cron_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/component/bindings/cron"
	"github.com/quorate/quorate/internal/fault"
)

// claims implements bindings.Claims for the nodes of a cluster, which share it.
type claims struct {
	mu    sync.Mutex
	taken map[string]bool
	fail  error
}

func (c *claims) Claim(_ context.Context, key string, life time.Duration) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return false, c.fail
	}
	if c.taken == nil {
		c.taken = map[string]bool{}
	}
	first := !c.taken[key]
	c.taken[key] = true
	return first, nil
}

func values(t *testing.T, pairs ...string) component.Values {
	t.Helper()
	v, err := check(pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func check(pairs ...string) (component.Values, error) {
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	v, _, err := m.Check(component.Pos{}, "ticks", cron.Fields())
	return v, err
}

func open(t *testing.T, c bindings.Claims, pairs ...string) bindings.Binding {
	t.Helper()
	return openWith(t, cron.Options{Claims: c, Logger: slog.New(slog.DiscardHandler)}, pairs...)
}

func openWith(t *testing.T, o cron.Options, pairs ...string) bindings.Binding {
	t.Helper()
	o.Name, o.Namespace, o.Metadata = "ticks", "shop", values(t, pairs...)
	b, err := cron.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func stop(t *testing.T, b bindings.Binding) {
	t.Helper()
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCron_Conformance(t *testing.T) {
	bindingstest.RunInput(t, bindingstest.Input{Open: func(t *testing.T) (bindings.Binding, func(*testing.T) bool) {
		return open(t, &claims{}, "schedule", "@every 1s"), func(*testing.T) bool { return true }
	}})
}

func TestCron_DeliversEachTickOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &claims{}
		sinks := make([]*bindingstest.Sink, 3)
		for i := range sinks {
			sinks[i] = bindingstest.NewSink()
			b := open(t, shared, "schedule", "*/5 * * * *")
			if err := b.Input.Start(t.Context(), sinks[i]); err != nil {
				t.Fatal(err)
			}
			defer stop(t, b)
			<-time.After(1300 * time.Millisecond) // nodes do not start at once
		}
		<-time.After(time.Hour)
		synctest.Wait()
		seen := map[string]int{}
		for _, s := range sinks {
			for _, e := range s.Events() {
				seen[e.Metadata["readTimeUTC"]]++
			}
		}
		if len(seen) != 12 {
			t.Errorf("%d ticks in an hour", len(seen))
		}
		for at, n := range seen {
			if n != 1 || !strings.HasSuffix(at, ":00Z") {
				t.Errorf("the tick %s was delivered %d times", at, n)
			}
		}
	})
}

func TestCron_LeavesTicksToReadyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &claims{}
		idle, busy := bindingstest.NewSink(), bindingstest.NewSink()
		idle.Pause(true)
		for _, s := range []*bindingstest.Sink{idle, busy} {
			b := open(t, shared, "schedule", "@every 15m")
			if err := b.Input.Start(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			defer stop(t, b)
		}
		<-time.After(2*time.Hour + time.Minute)
		synctest.Wait()
		if n, m := len(idle.Events()), len(busy.Events()); n != 0 || m != 8 {
			t.Errorf("%d ticks at the one that is not ready, %d at the other", n, m)
		}
	})
}

func TestCron_SkipsTickThatCannotBeClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := bindingstest.NewSink()
		b := open(t, &claims{fail: errors.New("no quorum")}, "schedule", "@every 1m")
		defer stop(t, b)
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if n := len(sink.Events()); n != 0 {
			t.Errorf("%d ticks without a claim", n)
		}
	})
}

// slow is a sink whose deliveries block until they are canceled. It counts the deliveries.
type slow struct {
	bindingstest.Sink
	mu      sync.Mutex
	running int
}

func (s *slow) Ready() bool { return true }

func (s *slow) Deliver(ctx context.Context, _ bindings.Event) ([]byte, error) {
	s.mu.Lock()
	s.running++
	s.mu.Unlock()
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCron_SlowApplicationMissesNoTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &slow{}
		b := open(t, &claims{}, "schedule", "@every 1s")
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(10500 * time.Millisecond)
		sink.mu.Lock()
		n := sink.running
		sink.mu.Unlock()
		if n != 10 {
			t.Errorf("%d deliveries under way after 10 s", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil { // cancels the deliveries
			t.Error(err)
		}
	})
}

// An application that never answers must not collect requests without a limit.
func TestCron_LimitsTicksUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, shared, log := &slow{}, &claims{}, &bytes.Buffer{}
		b := openWith(t, cron.Options{Claims: shared, Logger: slog.New(slog.NewTextHandler(log, nil))},
			"schedule", "@every 1s")
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(200*time.Second + time.Millisecond)
		synctest.Wait()
		if sink.running != 128 || len(shared.taken) != 128 {
			t.Errorf("%d deliveries under way, %d ticks claimed", sink.running, len(shared.taken))
		}
		if n := strings.Count(log.String(), "too many earlier ticks"); n != 2 { // after 129 s and 189 s
			t.Errorf("%d warnings:\n%s", n, log)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil { // cancels the deliveries
			t.Error(err)
		}
	})
}

// wall is a wall clock that can be set.
type wall struct {
	mu     sync.Mutex
	offset time.Duration
}

func (w *wall) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.offset)
}

func (w *wall) step(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offset += by
}

// A node that was suspended wakes up after the claim of another node has expired.
func TestCron_SkipsTickWhoseClaimMayHaveExpired(t *testing.T) {
	for name, c := range map[string]struct {
		late time.Duration
		want string
	}{
		"short pause": {20 * time.Minute, "2000-01-01T12:00:00Z"},
		"long pause":  {90 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, sink := &wall{offset: 12*time.Hour - time.Minute - time.Second}, bindingstest.NewSink()
				b := openWith(t, cron.Options{Claims: &claims{}, Logger: slog.New(slog.DiscardHandler),
					Now: clock.now}, "schedule", "0 0 12 * * *")
				defer stop(t, b)
				if err := b.Input.Start(t.Context(), sink); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				clock.step(c.late) // timers do not run while a machine is suspended
				<-time.After(5 * time.Minute)
				synctest.Wait()
				got := ""
				if events := sink.Events(); len(events) > 0 {
					got = events[0].Metadata["readTimeUTC"]
				}
				if got != c.want {
					t.Errorf("delivered %q, want %q", got, c.want)
				}
			})
		})
	}
}

// frozen are claims that take half an hour and more, as for a process that is stopped in the middle of a claim.
type frozen struct{ claims }

func (f *frozen) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	<-time.After(31 * time.Minute)
	return f.claims.Claim(ctx, key, life)
}

func TestCron_SkipsTickThatIsClaimedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := bindingstest.NewSink()
		b := open(t, &frozen{}, "schedule", "@hourly")
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour + 59*time.Minute)
		synctest.Wait()
		if events := sink.Events(); len(events) != 0 {
			t.Errorf("delivered %v", events)
		}
		stop(t, b)
	})
}

func TestCron_FollowsTheWallClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"set back by a day": -24 * time.Hour,
		"set forward by a day": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, sink := &wall{offset: 48 * time.Hour}, bindingstest.NewSink()
				b := openWith(t, cron.Options{Claims: &claims{}, Logger: slog.New(slog.DiscardHandler),
					Now: clock.now}, "schedule", "@hourly")
				defer stop(t, b)
				if err := b.Input.Start(t.Context(), sink); err != nil {
					t.Fatal(err)
				}
				<-time.After(90 * time.Minute)
				clock.step(step)
				<-time.After(2 * time.Hour)
				synctest.Wait()
				events, first := sink.Events(), time.Date(2000, 1, 3, 1, 0, 0, 0, time.UTC)
				if len(events) != 3 {
					t.Fatalf("delivered %v", events)
				}
				for i, want := range []time.Time{first, first.Add(step + time.Hour), first.Add(step + 2*time.Hour)} {
					if got := events[i].Metadata["readTimeUTC"]; got != want.Format(time.RFC3339) {
						t.Errorf("tick %d is %s, want %s", i, got, want)
					}
				}
			})
		})
	}
}

func TestCron_SmallStepOfTheClockRepeatsNoTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, sink := &wall{}, bindingstest.NewSink()
		b := openWith(t, cron.Options{Claims: &claims{}, Logger: slog.New(slog.DiscardHandler), Now: clock.now},
			"schedule", "@every 1m")
		defer stop(t, b)
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(5*time.Minute + time.Second)
		clock.step(-3 * time.Minute)
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if n := len(sink.Events()); n != 7 {
			t.Errorf("%d events in 7 minutes of the wall clock", n)
		}
	})
}

// working is a sink that needs a fixed time for each event. It records an error if the delivery is canceled.
type working struct {
	bindingstest.Sink
	takes  time.Duration
	failed error
}

func (w *working) Deliver(ctx context.Context, _ bindings.Event) ([]byte, error) {
	select {
	case <-time.After(w.takes):
		return nil, nil
	case <-ctx.Done():
		w.failed = ctx.Err()
		return nil, ctx.Err()
	}
}

func TestCron_CloseWaitsForClaimedTick(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		want  error
	}{
		"in time":  {5 * time.Second, nil},
		"too slow": {time.Hour, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &working{takes: c.takes}
				b := open(t, &claims{}, "schedule", "@every 1m")
				if err := b.Input.Start(t.Context(), sink); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := b.Close(ctx); err != nil || !errors.Is(sink.failed, c.want) {
					t.Errorf("the delivery ended with %v, close with %v", sink.failed, err)
				}
			})
		})
	}
}

// slowClaims is a slow implementation of bindings.Claims. As in the replicated store, a claim counts even if its
// context ends first.
type slowClaims struct {
	claims
	takes time.Duration
}

func (c *slowClaims) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	first, err := c.claims.Claim(ctx, key, life)
	select {
	case <-time.After(c.takes):
		return first, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func TestCron_CloseWaitsForClaimThatHasBegun(t *testing.T) {
	for name, c := range map[string]struct {
		takes, want time.Duration
		delivered   int
	}{
		"in time":   {time.Second, time.Second, 1},
		"no quorum": {time.Hour, 2 * time.Second, 0}, // the rest of the node has to stop too
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := bindingstest.NewSink()
				b := open(t, &slowClaims{takes: c.takes}, "schedule", "@every 1m")
				if err := b.Input.Start(t.Context(), sink); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				sink.Pause(true) // as a stopping node does
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				err := b.Close(ctx)
				if took := time.Since(begun); err != nil || took > c.want {
					t.Errorf("closed after %s with %v", took, err)
				}
				if got := sink.Events(); len(got) != c.delivered || len(got) > 0 && !got[0].Claimed {
					t.Errorf("delivered %v", got)
				}
			})
		})
	}
}

func TestCron_TimeZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := bindingstest.NewSink()
		b := open(t, &claims{}, "schedule", "0 0 9 * * *", "timeZone", "Asia/Tokyo")
		defer stop(t, b)
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		<-time.After(25 * time.Hour)
		synctest.Wait()
		events := sink.Events()
		if len(events) == 0 || !strings.HasSuffix(events[0].Metadata["readTimeUTC"], "T00:00:00Z") ||
			events[0].Metadata["timeZone"] != "Asia/Tokyo" {
			t.Errorf("%v", events)
		}
	})
}

func TestCron_RefusesInvalidMetadata(t *testing.T) {
	for _, pairs := range [][]string{
		{}, {"schedule", "every day"}, {"schedule", "* * *"}, {"schedule", "@every 15"}, {"schedule", "@hourly",
			"timeZone", "Mars/Olympus"},
		{"schedule", "@hourly", "timeZone", "Local"}, {"schedule", "CRON_TZ=Local 0 9 * * *"},
		{"schedule", "TZ=localtime 0 9 * * *"}, {"schedule", "CRON_TZ=UTC"}, {"schedule", "TZ=Mars/Olympus @hourly"},
	} {
		if _, err := check(pairs...); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", pairs, err)
		}
	}
	for _, schedule := range []string{"@hourly", "@every 1h30m", "*/5 * * * *", "30 */5 * * * *", "0 9 * * MON-FRI",
		"CRON_TZ=Asia/Tokyo 0 9 * * *"} {
		if _, err := check("schedule", schedule); err != nil {
			t.Errorf("%s: %v", schedule, err)
		}
	}
}
