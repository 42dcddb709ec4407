package topics

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
)

// liveBytes returns the size of the heap in bytes, after a garbage collection.
func liveBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Many topics have a message each, and many groups of one node have nothing to receive. At the leader, an idle topic
// or group has no goroutine, no timer and no log entry of its own. With -v, the test logs how much memory each takes.
func TestKeeper_ManyIdleTopicsAndGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("creates 10,000 topics and 1,000 groups")
	}
	testutil.SkipUnderRace(t, "it measures memory")
	const topics, groups = 10_000, 1000
	begun := time.Now()
	withLab(t, func(t *testing.T, l *lab) {
		name := func(n int) Topic { return Topic{Store: orders.Store, Name: fmt.Sprintf("topic-%05d", n)} }
		timers, goroutines, before := l.Members[0].Timers(), runtime.NumGoroutine(), liveBytes()
		for n := 0; n < topics; n += 100 {
			var ops []command.Op
			for m := n; m < n+100; m++ {
				ops = append(ops, AppendOp(name(m), &pubsub.Message{}))
			}
			l.Propose("publish", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
			l.answer()
		}
		l.wait(time.Minute)
		after := liveBytes()
		t.Logf("%d bytes for a topic", (after-min(before, after))/topics)
		idle := func(what string, most int, step func()) {
			t.Helper()
			revision := l.Tip.Revision()
			for end := l.Elapsed + uint64(time.Hour.Milliseconds()); l.Elapsed < end; {
				step()
			}
			if n := l.Members[0].Timers() - timers; n > most {
				t.Errorf("%s: %d timers", what, n)
			}
			if n := runtime.NumGoroutine() - goroutines; n > most {
				t.Errorf("%s: %d goroutines", what, n)
			}
			if n := l.Tip.Revision() - revision; n > 0 {
				t.Errorf("%s: %d log records in an hour", what, n)
			}
		}
		idle("topics", 1, func() { l.wait(time.Minute) }) // retention
		before = liveBytes()
		for n := range groups {
			l.run(func(ctx context.Context) error {
				_, err := l.Join(ctx, "node", true, &Join{ID: uint64(n + 1), Topic: name(n), Group: "g", Newest: true,
					Concurrency: 10, Window: 20, RetryBackoff: time.Second})
				return err
			})
			if n%100 == 0 {
				l.next("node", 0)
			}
		}
		after = liveBytes()
		t.Logf("%d bytes for a group with a subscriber", (after-min(before, after))/groups)
		idle("groups", 2, func() { // retention and the session
			if _, known := l.next("node", 0); !known {
				t.Fatal("the session has ended")
			}
		})
	})
	t.Logf("%s for all", time.Since(begun).Round(time.Millisecond))
}
