package redis

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/internal/signal"
	"github.com/quorate/quorate/internal/testutil"
)

// After the end of a lease, another process may have claimed the message. So this process must neither renew the
// message nor give the message back, because both would take the message from the other process.
func TestGroup_LeavesQueuedMessagesWithoutLease(t *testing.T) {
	h := redistest.StartHostile(t, map[string]string{"xclaim": "*1\r\n$3\r\n2-0\r\n"}, false)
	values, _, err := component.Metadata{{Name: "redisHost", Value: h.Address}}.Check(component.Pos{}, "topics",
		Fields())
	testutil.Must(t, err)
	b, err := Open(t.Context(), Options{Metadata: values, Logger: slog.New(slog.DiscardHandler)})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, b.Close()) })
	g := &group{broker: b, key: groupKey{"orders", "shop"}, log: b.log, changed: signal.New(),
		members: map[*member]bool{}, items: map[position]*item{}, unacked: map[position]bool{}}
	g.run, g.stop = context.WithCancel(t.Context())
	defer g.stop()
	lost, mine, held := position{1, 0}, position{2, 0}, position{3, 0}
	begun := time.Now()
	g.add(&entry{id: lost}, 1, begun.Add(-2*b.set.processing))
	g.add(&entry{id: mine}, 1, begun)
	g.add(&entry{id: held}, 1, begun.Add(-2*b.set.processing))
	m := g.join(1)
	g.mu.Lock()
	i := g.items[held] // a member still handles this message
	g.queue = g.queue[:2]
	g.hold(i, m)
	g.mu.Unlock()
	ids := map[position]bool{}
	for _, id := range g.owned(begun) {
		ids[id] = true
	}
	if ids[lost] || !ids[mine] || !ids[held] {
		t.Errorf("the messages that are renewed: %v", ids)
	}

	g.add(&entry{id: lost}, 1, begun.Add(-2*b.set.processing))
	if !g.remove(m) {
		t.Fatal("there is another member")
	}
	g.release()
	if n := h.Called("xclaim"); n != 1 {
		t.Errorf("%d messages were given back", n)
	}
	if words := h.Last("xclaim"); len(words) < 6 || words[5] != mine.String() {
		t.Errorf("given back was %v", words)
	}
	if n := len(g.items); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}
