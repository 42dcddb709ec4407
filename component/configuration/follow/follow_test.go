package follow_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/follow"
	"github.com/quorate/quorate/internal/fault"
)

// server is a Source in memory. It reports changes only when the test says so.
type server struct {
	mu       sync.Mutex
	items    map[string]string
	readErr  error
	broken   string // key of an item that cannot be read
	most     int    // largest number of items of one read; 0 = no limit
	slow     time.Duration
	answered func() // called before Read returns its answer; nil = nothing
	listen   error  // error of the next Listen; nil = Listen connects
	silent   string // why changes are not reported
	reports  follow.Reports
	cut      context.CancelFunc // ends the connection
	reads    [][]string
	channels []string // channels of the calls of Listen
}

func (s *server) Read(ctx context.Context, keys []string) ([]configuration.Item, error) {
	s.mu.Lock()
	slow, answered := s.slow, s.answered
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(slow):
	}
	if answered != nil {
		defer answered()
	}
	return s.answer(keys)
}

func (s *server) answer(keys []string) ([]configuration.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, keys)
	if s.readErr != nil {
		return nil, s.readErr
	}
	var out []configuration.Item
	for _, k := range slices.Sorted(maps.Keys(s.items)) {
		if len(keys) == 0 || slices.Contains(keys, k) {
			out = append(out, configuration.Item{Key: k, Value: s.items[k]})
			if k == s.broken {
				return nil, fault.New(fault.Corrupt, "test", k+" is broken")
			}
			if s.most > 0 && len(out) > s.most {
				return nil, fault.New(fault.TooLarge, "test", "too many items")
			}
		}
	}
	return out, nil
}

func (s *server) Listen(ctx context.Context, channel string, reports follow.Reports) error {
	s.mu.Lock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.channels = append(s.channels, channel)
	err, silent := s.listen, s.silent
	s.reports, s.cut = reports, cancel
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if silent != "" {
		reports.Silent(silent)
	} else {
		reports.Ready()
	}
	<-ctx.Done()
	return errors.New("the connection was lost")
}

// set changes items without a report. An empty value deletes the item.
func (s *server) set(pairs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 0; i < len(pairs); i += 2 {
		if s.items[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(s.items, pairs[i])
		}
	}
}

func (s *server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// bed is a Hub with one subscription. It runs in a bubble of synctest.
type bed struct {
	*server
	t   *testing.T
	hub *follow.Hub
	sub configuration.Subscription
	log bytes.Buffer
}

// in runs test with a bed, in a bubble of synctest. At the start, the server has the items a=1 and b=1.
func in(t *testing.T, prepare func(*server), test func(*bed), keys ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{server: &server{items: map[string]string{"a": "1", "b": "1"}}, t: t}
		prepare(b.server)
		b.hub = follow.New(follow.Options{Source: b.server, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
		defer b.hub.Close()
		var err error
		if b.sub, err = b.hub.Subscribe(t.Context(), "main", keys, false); err != nil {
			t.Fatal(err)
		}
		defer b.sub.Close()
		synctest.Wait()
		test(b)
	})
}

func plain(*server) {}

// want reads until it has received the given items, each as key=value. A deleted item has no value. The test fails if
// another item arrives.
func (b *bed) want(items ...string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Hour) // an hour of virtual time
	defer cancel()
	var got []string
	for len(got) < len(items) {
		part, err := b.sub.Next(ctx)
		if err != nil {
			b.t.Fatalf("got %v, want %v: %v", got, items, err)
		}
		for _, i := range part {
			got = append(got, i.Key+"="+i.Value)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, items) {
		b.t.Fatalf("got %v, want %v", got, items)
	}
}

// idle checks that no item arrives within d.
func (b *bed) idle(d time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	if items, err := b.sub.Next(ctx); err == nil {
		b.t.Fatalf("got %v", items)
	}
}

func TestHub_ReportedKeysAreReadAgain(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.set("a", "2", "c", "1")
		b.reports.Changed("a")
		b.want("a=2")
		b.idle(time.Second) // the server did not report c
		b.reports.Changed("c")
		b.want("c=1")
		b.set("a", "")
		b.reports.Changed("a")
		b.want("a=")
		b.reports.Changed("b") // a report although nothing has changed
		b.idle(time.Second)
		if got := slices.Sorted(slices.Values(b.sub.Present())); !slices.Equal(got, []string{"b", "c"}) {
			b.t.Errorf("present are %v", got)
		}
		if last := b.reads[len(b.reads)-1]; !slices.Equal(last, []string{"b"}) {
			b.t.Errorf("the last read was of %v", last)
		}
	})
}

func TestHub_LostReportIsNoticedByTheCheck(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.set("a", "2")
		b.idle(58 * time.Second)
		b.want("a=2")
	})
}

func TestHub_ReadsAllAfterALostConnection(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.update(func() { b.listen = errors.New("refused") })
		b.cut()
		b.set("a", "2", "b", "", "c", "1")
		b.idle(10 * time.Second)
		b.update(func() { b.listen = nil })
		b.want("a=2", "b=", "c=1")
	})
}

func TestHub_FailedReadIsRepeated(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.update(func() { b.readErr = fault.New(fault.Unavailable, "test", "down") })
		b.set("a", "2")
		b.reports.Changed("a")
		b.idle(10 * time.Second)
		if n := strings.Count(b.log.String(), "WARN"); n != 1 {
			b.t.Errorf("%d warnings:\n%s", n, b.log.String())
		}
		b.update(func() { b.readErr = nil })
		b.want("a=2")
	})
}

func TestHub_BrokenItemDelaysNoOther(t *testing.T) {
	for name, keys := range map[string][]string{"of all keys": nil, "of some keys": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			in(t, plain, func(b *bed) {
				b.update(func() { b.broken = "b" })
				b.set("a", "2", "b", "2", "c", "2")
				b.reports.Changed("a", "b", "c")
				b.want("a=2", "c=2")
				b.set("a", "3", "c", "")
				b.idle(58 * time.Second)
				b.want("a=3", "c=") // the server has not reported these changes
				b.update(func() { b.broken = "" })
				b.reports.Changed("b")
				b.want("b=2")
				if n := strings.Count(b.log.String(), "b is broken"); n < 1 || n > 2 {
					b.t.Errorf("%d warnings:\n%s", n, b.log.String())
				}
			}, keys...)
		})
	}
}

// Two subscriptions of one channel want more items together than one read may have.
func TestHub_ReadsInPartsWhatIsTooLargeTogether(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.set("c", "1", "d", "1")
		other, err := b.hub.Subscribe(b.t.Context(), "main", []string{"c", "d"}, false)
		if err != nil {
			b.t.Fatal(err)
		}
		defer other.Close()
		b.update(func() { b.most = 3 })
		b.set("a", "2", "b", "2", "c", "2", "d", "2")
		b.reports.Changed()
		b.want("a=2", "b=2")
		b.sub = other
		b.want("c=2", "d=2")
	}, "a", "b")
}

// Each part has its own timeout, so that slow reads do not keep the last keys from their changes.
func TestHub_SlowPartsReachAllKeys(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.update(func() { b.most, b.slow = 1, 20*time.Second })
		b.set("a", "2", "b", "2")
		b.reports.Changed()
		b.want("a=2", "b=2")
	}, "a", "b")
}

func TestHub_PollsASilentServer(t *testing.T) {
	in(t, func(s *server) { s.silent = "not allowed" }, func(b *bed) {
		b.set("a", "2")
		b.idle(4 * time.Second)
		b.want("a=2")
		b.cut() // connects again, and is silent again
		b.set("a", "3")
		b.want("a=3")
		if n := strings.Count(b.log.String(), "not allowed"); n != 1 {
			b.t.Errorf("%d warnings:\n%s", n, b.log.String())
		}
	})
}

func TestHub_SubscriptionHasItsKeysOnly(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.set("a", "2", "c", "2", "d", "1")
		b.reports.Changed() // any key may have changed
		b.want("c=2")
		for _, keys := range b.reads {
			if !slices.Equal(keys, []string{"c", "z"}) {
				b.t.Errorf("read %v", keys)
			}
		}
	}, "z", "c", "c")
}

func TestHub_InitialDeliversPresentItems(t *testing.T) {
	in(t, plain, func(b *bed) {
		sub, err := b.hub.Subscribe(b.t.Context(), "main", nil, true)
		if err != nil {
			b.t.Fatal(err)
		}
		defer sub.Close()
		b.sub = sub
		b.want("a=1", "b=1")
	})
}

// hold makes the next reads wait with their answers. Each receive from the returned channel lets one read return.
func (b *bed) hold() chan struct{} {
	held := make(chan struct{})
	b.update(func() { b.answered = func() { held <- struct{}{} } })
	return held
}

// subscribe starts a subscription to all items in another goroutine. The returned channel has it when it has started.
func (b *bed) subscribe() chan configuration.Subscription {
	started := make(chan configuration.Subscription, 1)
	go func() {
		sub, err := b.hub.Subscribe(b.t.Context(), "main", nil, false)
		if err != nil {
			b.t.Error(err)
		}
		started <- sub
	}()
	return started
}

func TestHub_ChangeDuringTheFirstReadIsNotMissed(t *testing.T) {
	in(t, plain, func(b *bed) {
		held := b.hold()
		started := b.subscribe()
		synctest.Wait() // the first read has the old values
		b.update(func() { b.answered = nil })
		b.set("a", "2")
		b.reports.Changed("a")
		synctest.Wait()
		<-held
		sub := <-started
		defer sub.Close()
		begin := time.Now()
		b.sub = sub
		b.want("a=2")
		if waited := time.Since(begin); waited > 0 {
			b.t.Errorf("the change arrived after %s of virtual time, with the next read of all items", waited)
		}
	})
}

func TestHub_ReadOfAnotherSubscriptionDelaysNeitherPresentNorClose(t *testing.T) {
	in(t, plain, func(b *bed) {
		held := b.hold()
		b.update(func() { b.broken = "b" })
		b.reports.Changed()
		synctest.Wait() // the hub reads all items
		b.update(func() { b.broken = "" })
		started := b.subscribe()
		synctest.Wait() // the first read of the new subscription is next
		<-held
		synctest.Wait() // the hub now wants to read the items one by one
		if got := slices.Sorted(slices.Values(b.sub.Present())); !slices.Equal(got, []string{"a", "b"}) {
			b.t.Errorf("present are %v", got)
		}
		b.hub.Close()
		<-held
		(<-started).Close()
	})
}

// A component is replaced while its hub has read that an item was deleted. The subscription cannot deliver this any
// more, so the item must stay in its list. The reader of the subscription then learns of the deletion by comparison.
func TestHub_CloseDuringAReadKeepsUndeliveredDeletions(t *testing.T) {
	in(t, plain, func(b *bed) {
		held := b.hold()
		b.set("a", "")
		b.reports.Changed("a")
		synctest.Wait() // the hub has read that there is no item a
		go b.hub.Close()
		synctest.Wait()
		<-held
		synctest.Wait()
		if items, err := b.sub.Next(b.t.Context()); !fault.Is(err, fault.Unavailable) {
			b.t.Errorf("Next: %v, %v", items, err)
		}
		if got := slices.Sorted(slices.Values(b.sub.Present())); !slices.Equal(got, []string{"a", "b"}) {
			b.t.Errorf("present are %v", got)
		}
	})
}

// The hub stops listening to a channel after its last subscription, and listens again for the next subscription.
func TestHub_ListensWhileThereAreSubscriptions(t *testing.T) {
	in(t, plain, func(b *bed) {
		other, err := b.hub.Subscribe(b.t.Context(), "other", nil, false)
		if err != nil {
			b.t.Fatal(err)
		}
		b.sub.Close()
		other.Close()
		synctest.Wait()
		if b.sub, err = b.hub.Subscribe(b.t.Context(), "main", nil, false); err != nil {
			b.t.Fatal(err)
		}
		if want := []string{"main", "other", "main"}; !slices.Equal(b.channels, want) {
			b.t.Errorf("listened to %v, want %v", b.channels, want)
		}
	})
}

func TestHub_SubscribeEndsWithItsContext(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.update(func() { b.listen = errors.New("refused") })
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		if _, err := b.hub.Subscribe(ctx, "other", nil, false); !fault.Is(err, fault.Timeout) {
			b.t.Errorf("no connection: %v", err)
		}
		b.update(func() { b.listen, b.readErr = nil, fault.New(fault.Unavailable, "test", "down") })
		if _, err := b.hub.Subscribe(b.t.Context(), "other", nil, false); !fault.Is(err, fault.Unavailable) {
			b.t.Errorf("no read: %v", err)
		}
		b.update(func() { b.readErr = nil })
	})
}

func TestHub_CloseEndsSubscriptions(t *testing.T) {
	in(t, plain, func(b *bed) {
		b.hub.Close()
		if _, err := b.sub.Next(b.t.Context()); !fault.Is(err, fault.Unavailable) {
			b.t.Errorf("Next: %v", err)
		}
		if _, err := b.hub.Subscribe(b.t.Context(), "main", nil, false); !fault.Is(err, fault.Unavailable) {
			b.t.Errorf("Subscribe: %v", err)
		}
	})
}
