package workflows

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// sizedGroup is a group that reports success for every entry, and records the sizes of the entries.
type sizedGroup struct {
	deadGroup
	sizes *[]int
}

func (g sizedGroup) Commit(_ context.Context, r *command.Request) (kv.Result, error) {
	size := 0
	for n := range r.Ops {
		size += len(r.Ops[n].Key) + len(r.Ops[n].Value)
	}
	*g.sizes = append(*g.sizes, size)
	return kv.Result{Outcome: kv.Applied, Revisions: []uint64{uint64(len(*g.sizes)) + 1}}, nil
}

// large executes steps, in one entry if possible, with an instance that waits for activities. It returns the instance
// and the sizes of the entries.
func large(t *testing.T, activities int, steps func(k *Keeper, i *instance) []step) (i *instance, sizes []int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := openOutbox(deadGroup{})
		k.group = sizedGroup{sizes: &sizes}
		i = &instance{Ref: Ref{"shop", "a"}, loaded: true, history: &turn.History{}, due: map[int32]uint64{},
			head: head{revision: 1, low: middle, high: middle, execution: "x"}}
		i.inbox.set(nil, &i.Ref)
		i.history.Add(turn.Start(&protos.CreateInstanceRequest{InstanceId: "a", Name: "order"}, "x", time.Now()))
		k.mu.Lock()
		for n := range int32(activities) { //nolint:gosec // few
			e := &protos.HistoryEvent{EventId: n, EventType: &protos.HistoryEvent_TaskScheduled{
				TaskScheduled: &protos.TaskScheduledEvent{Name: "pay"}}}
			i.history.Add(e)
			id := taskID{i.Ref, n, 1}
			k.tasks[id] = &task{id: id, app: "shop", exec: "x", event: encodeEvent(e)}
		}
		k.instances[i.Ref] = i
		for _, s := range steps(k, i) {
			k.push(i.Ref, s)
		}
		k.mu.Unlock()
		synctest.Wait()
		k.Close()
	})
	return i, sizes
}

// result returns the step for a result of the given size in bytes. The step stores its answer in err.
func result(i *instance, id int32, bytes int, err *error) step {
	*err = fault.New(fault.Internal, "test", "there is no answer")
	return step{do: func(c *change) {
		c.completeTask(taskID{i.Ref, id, 1}, 1, &protos.ActivityResponse{
			Result: wrapperspb.String(strings.Repeat("x", bytes))}, func(answer error) { *err = answer })
	}}
}

// Large results of several activities arrive at the same time. Together they exceed the limit of an entry, but each of
// them is stored.
func TestStore_LargeEventsShareNoEntry(t *testing.T) {
	const results = 5
	var errs [results]error
	i, sizes := large(t, results, func(_ *Keeper, i *instance) (list []step) {
		for n := range errs {
			list = append(list, result(i, int32(n), 13<<20, &errs[n])) //nolint:gosec // few
		}
		return list
	})
	for n, err := range errs {
		if err != nil {
			t.Errorf("result %d is answered with: %v", n, err)
		}
	}
	for n, size := range sizes {
		if size > maxEntry {
			t.Errorf("entry %d has %d bytes", n, size)
		}
	}
	for n, a := range i.inbox.list {
		id := int(a.event.GetTaskCompleted().GetTaskScheduledId())
		if a.seq != middle+uint64(n) || id != n { //nolint:gosec // few
			t.Errorf("event %d of the inbox has the number %d and is for activity %d", n, a.seq, id)
		}
	}
	if len(i.inbox.list) != results {
		t.Errorf("the inbox has %d events", len(i.inbox.list))
	}
}

// tooLargeAnswer returns an answer whose outcome exceeds the limit of an entry. The ids of
// its actions begin with first.
func tooLargeAnswer(first int32) *protos.WorkflowResponse {
	answer, input := &protos.WorkflowResponse{}, wrapperspb.String(strings.Repeat("x", 11<<20))
	for id := range int32(3) {
		answer.Actions = append(answer.Actions, &protos.WorkflowAction{Id: first + id,
			WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
				ScheduleTask: &protos.ScheduleTaskAction{Name: "pay", Input: input}}})
	}
	return answer
}

// The answer of a worker exceeds the limit of an entry. The turn has the result of an activity that is only in memory.
// The result is not refused with fault.TooLarge, because the node would not send a refused result again.
func TestStore_TurnThatIsTooLargeRefusesNoEvents(t *testing.T) {
	var done, answered error
	_, sizes := large(t, 1, func(_ *Keeper, i *instance) []step {
		s := &stream{streamID: streamID{"s", 1}, session: &session{id: "s"}, held: map[Ref]*instance{}}
		answer := tooLargeAnswer(1)
		hand := step{do: func(c *change) {
			events := turn.Begin(i.history, eventsOf(i.inbox.list), c.time())
			i.out = &handedTurn{stream: s, number: 7, taken: len(i.inbox.list), events: events}
			i.folds = true
		}}
		complete := step{do: func(c *change) {
			c.completeTurn("s", 7, answer, func(err error) { answered = err })
		}}
		return []step{result(i, 0, 10, &done), hand, complete}
	})
	if !fault.Is(answered, fault.TooLarge) || len(sizes) > 0 {
		t.Errorf("the turn is answered with %v, and %d entries are stored", answered, len(sizes))
	}
	if !fault.Is(done, fault.Unavailable) {
		t.Errorf("the result of the activity is answered with: %v", done)
	}
}

// A turn whose answer exceeds the limit of an entry is handed out again after a pause, although nothing else happens.
func TestStore_TurnThatIsTooLargeIsHandedOutAgain(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		n, lead := m.worker()
		m.start("event")
		m.client(lead, false)
		m.Pass(uint64(foldPause.Milliseconds()))
		m.answerAll()
		if len(n.held) != 1 {
			t.Fatalf("the worker has %d turns", len(n.held))
		}
		i := n.held[0]
		n.held = nil
		data, err := proto.Marshal(tooLargeAnswer(0))
		testutil.Must(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := lead.keeper.complete(grouptest.WithClient(m.T.Context(), n),
				&call{what: callTurn, session: n.session, ref: i.ref, b: i.number, data: data})
			done <- err
		}()
		m.Settle()
		m.answerAll()
		if err := <-done; !fault.Is(err, fault.TooLarge) {
			t.Errorf("the turn is answered with: %v", err)
		}
		for range 30 {
			m.act(n, lead)
			m.Pass(100)
			m.answerAll()
		}
		if len(n.held) != 1 {
			t.Errorf("the worker has %d turns after a while", len(n.held))
		}
	})
	check(t, "a turn that is too large", broken, trace)
}

// A history and the next event together exceed the limit of a message between nodes. The instance stalls. Otherwise
// the pulls of the node would fail, and the node would get no other work.
func TestHand_TurnThatIsTooLargeStalls(t *testing.T) {
	session := &session{id: "s", wake: make(chan struct{}, 1)}
	i, _ := large(t, 0, func(k *Keeper, i *instance) []step {
		k.application("shop").streams = []*stream{{streamID: streamID{"s", 1}, session: session, app: "shop",
			held: map[Ref]*instance{}}}
		i.past, i.head.bytes, i.head.chunks = [][]byte{make([]byte, 47<<20)}, 47<<20, 1
		return []step{{do: func(c *change) {
			e := turn.Raised("go", wrapperspb.String(strings.Repeat("x", 25<<20)), c.time())
			c.arrive(&arrival{event: e, raw: encodeEvent(e)})
		}}}
	})
	for _, item := range session.out {
		t.Errorf("the node gets an item of %d bytes", item.size())
	}
	if i.head.status != statusStalled || len(i.inbox.list) != 1 {
		t.Errorf("the instance has the status %d and %d events", i.head.status, len(i.inbox.list))
	}
}
