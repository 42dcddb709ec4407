package workflows

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/grouptest"
)

// A request for an instance looks at none of the events that wait in the inbox. The test removes these events from
// memory, so a request that looks at one of them fails.
func TestEvent_LooksAtNoOtherEventOfTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouptest.New(t, 1, 1)
		s := &server{Member: g.Members[0], model: &model{Group: g}}
		g.Changed = func(*grouptest.Member) { s.keeper.Update() }
		s.open()
		g.Elect(s.Member)
		r, now := Ref{modelApp, "i"}, time.UnixMilli(int64(grouptest.Epoch))
		begin := turn.Start(&protos.CreateInstanceRequest{InstanceId: r.ID, Name: "order"}, "execution", now)
		finish := func(what string, request func() error) {
			done := make(chan error, 1)
			go func() { done <- request() }()
			g.Settle()
			for calls := g.Calls(); len(calls) > 0; calls = g.Calls() {
				g.Release(calls[0], true)
			}
			select {
			case err := <-done:
				testutil.Must(t, err)
			default:
				t.Fatalf("%s has no answer", what)
			}
		}
		send := func(e *protos.HistoryEvent, key uint64) {
			finish(fmt.Sprint("event ", e), func() error { return s.keeper.event(t.Context(), r, e, key) })
		}
		finish("the start", func() error { return s.keeper.start(t.Context(), r, &creation{event: begin}) })
		for n := range 10 {
			send(turn.Raised("go", nil, now), uint64(n+1)) //nolint:gosec // few
		}
		s.keeper.mu.Lock()
		list := s.keeper.instances[r].inbox.list
		s.keeper.mu.Unlock()
		if len(list) != 11 {
			t.Fatalf("%d events wait", len(list))
		}
		clear(list[:len(list)-1])
		for n, e := range []*protos.HistoryEvent{turn.Raised("go", nil, now), turn.Suspended(nil, now),
			turn.Suspended(nil, now), turn.Resumed(nil, now)} {
			send(e, uint64(n+20)) //nolint:gosec // few
		}
		s.keeper.mu.Lock()
		if have := len(s.keeper.instances[r].inbox.list); have != 14 { // the second suspension has no effect
			t.Errorf("%d events wait", have)
		}
		s.keeper.mu.Unlock()
		s.keeper.Close()
		g.Settle()
		g.Close()
	})
}
