package group

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// flowNode is one incarnation of a node with a worker.
type flowNode struct {
	l    *flowLoad
	id   int
	a    *simAccess
	b    *workflows.Broker
	over chan struct{} // closed when the node is to end
}

// flowStream is a stream of a worker. It lives until it is closed, until its method Next returns an error, or until
// its node is killed.
type flowStream struct {
	n     *flowNode
	ended atomic.Bool
	past  map[string][]*protos.HistoryEvent // the history that the worker keeps of each execution
}

func (s *flowStream) lives() bool { return !s.ended.Load() && !s.n.a.ended() }

// close implements incarnation.
func (n *flowNode) close(kill bool) {
	if kill {
		close(n.a.dead)
	}
	close(n.over)
	_ = n.b.Close()
}

// live opens streams, one after another.
func (n *flowNode) live() {
	for {
		select {
		case <-n.over:
			return
		default:
		}
		n.work()
		after(time.Duration(20+n.a.chance(200)) * time.Millisecond)
	}
}

// work opens one stream and executes its work items. It closes some streams while they still have work.
func (n *flowNode) work() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := workflow.Worker{CachesHistory: n.a.chance(2) == 0}
	if n.a.chance(3) == 0 {
		w.MaxTurns, w.MaxActivities = 1+n.a.chance(3), 1+n.a.chance(3)
	}
	opening, opened := context.WithTimeout(ctx, 5*time.Second)
	stream, err := n.b.Work(opening, flowApp, w)
	opened()
	if err != nil {
		return
	}
	s := &flowStream{n: n, past: map[string][]*protos.HistoryEvent{}}
	life := time.Duration(500+n.a.chance(12_000)) * time.Millisecond
	closed := time.AfterFunc(life, func() {
		if !n.l.calm.Load() {
			s.ended.Store(true)
			stream.Close()
		}
	})
	defer closed.Stop()
	var items sync.WaitGroup
	for {
		i, err := stream.Next(ctx)
		if err != nil {
			break
		}
		if r := i.GetWorkflowRequest(); r != nil {
			past := s.complete(r)
			items.Go(func() { s.turn(r, past, i.GetCompletionToken()) })
		} else {
			items.Go(func() { s.activity(i.GetActivityRequest(), i.GetCompletionToken()) })
		}
	}
	s.ended.Store(true)
	stream.Close()
	n.l.nodes.tasks.Go(items.Wait) // a worker may answer late
}

// complete returns the whole history of a turn. The engine leaves out the events that it has sent on this stream
// before. complete returns nil if the worker no longer has those events. The worker must then call fetch.
func (s *flowStream) complete(r *protos.WorkflowRequest) []*protos.HistoryEvent {
	b, err := proto.Marshal(r) // the events are unknown fields
	if err == nil {
		err = proto.Unmarshal(b, r)
	}
	if err != nil {
		s.n.l.s.fail("a work item cannot be decoded: %w", err)
	}
	from, past := int(r.GetCachedHistory().GetEventCount()), r.GetPastEvents()
	have := s.past[r.GetExecutionId().GetValue()]
	if from > len(have) {
		return nil
	}
	past = append(slices.Clip(have[:from]), past...)
	s.past[r.GetExecutionId().GetValue()] = past
	if past == nil {
		past = []*protos.HistoryEvent{}
	}
	return past
}

// fetch reads the history of a turn from the engine, because the worker lacks a part of it. It returns nil if the
// workflow has a new execution by now, because the engine then no longer waits for this turn.
func (s *flowStream) fetch(r *protos.WorkflowRequest) []*protos.HistoryEvent {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	from := int(r.GetCachedHistory().GetEventCount())
	events, _, err := s.n.b.History(ctx, flowApp, r.GetInstanceId(), 0, from)
	if err != nil || len(events) < from || readExecution(events) != r.GetExecutionId().GetValue() {
		return nil
	}
	return append(events, r.GetPastEvents()...)
}

func readExecution(events []*protos.HistoryEvent) string {
	for _, e := range events {
		if s := e.GetExecutionStarted(); s != nil {
			return s.GetWorkflowInstance().GetExecutionId().GetValue()
		}
	}
	return ""
}

// pause waits for a random time before a worker answers. This may be longer than a session of the node lives.
func (s *flowStream) pause() {
	switch {
	case s.n.l.calm.Load() || s.n.a.chance(3) > 0:
	case s.n.a.chance(12) == 0 || s.n.l.s.broke.slow && s.n.a.chance(3) == 0:
		after(time.Duration(s.n.a.chance(9000)) * time.Millisecond)
	default:
		after(time.Duration(s.n.a.chance(200)) * time.Millisecond)
	}
}

// silent reports whether a worker does not send its answer. A worker whose node was killed sends none. A worker whose
// stream has ended sometimes sends its answer nevertheless.
func (s *flowStream) silent() bool {
	return s.n.a.ended() || !s.lives() && s.n.a.chance(2) == 0
}

// turn executes a turn of a workflow.
func (s *flowStream) turn(r *protos.WorkflowRequest, past []*protos.HistoryEvent, token string) {
	if past == nil {
		if past = s.fetch(r); past == nil {
			return // the engine does not wait for this turn any more
		}
	}
	s.n.l.seen.turn(r, past)
	actions := readTurn(append(slices.Clip(past), r.GetNewEvents()...)).run()
	if s.pause(); s.silent() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.n.b.CompleteTurn(ctx, flowApp, &protos.WorkflowResponse{InstanceId: r.GetInstanceId(), Actions: actions,
		CompletionToken: token})
}

// activity executes an activity.
func (s *flowStream) activity(r *protos.ActivityRequest, token string) {
	l := s.n.l
	done := l.seen.begin(s, r)
	defer done()
	var in simInput
	if err := json.Unmarshal([]byte(r.GetInput().GetValue()), &in); err != nil {
		l.s.fail("the input of activity %s is %q: %w", r.GetName(), r.GetInput().GetValue(), err)
	}
	id := l.h.AddExecution(&history.Execution{Instance: in.Instance, Step: r.GetName(),
		Node: fmt.Sprint("node ", s.n.id), Input: in.Results, Begin: l.h.Now()})
	answer := &protos.ActivityResponse{InstanceId: r.GetWorkflowInstance().GetInstanceId(), TaskId: r.GetTaskId(),
		CompletionToken: token, Result: encodeRaw(id)}
	if !l.calm.Load() && in.Try < planRetries && s.n.a.chance(10) == 0 {
		answer.Result, answer.FailureDetails = nil, &protos.TaskFailureDetails{ErrorType: "Test", ErrorMessage: "fails"}
	}
	if s.pause(); s.silent() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.n.b.CompleteActivity(ctx, flowApp, answer)
}

// flowSeen checks the turns and activities that workers get:
//
//   - The history of an execution only grows: two histories that were read at different times never contradict.
//   - An execution has one result of each activity, timer and child that it has begun, and each external event once.
//   - A timer does not fire early.
//   - An activity is not handed out while another stream that lives has it.
type flowSeen struct {
	s *sim

	mu      sync.Mutex
	past    map[string][]uint64 // hashes of the events of the longest history, by execution
	running map[string][]*flowStream
}

func newFlowSeen(s *sim) *flowSeen {
	return &flowSeen{s: s, past: map[string][]uint64{}, running: map[string][]*flowStream{}}
}

// turn checks a turn.
func (f *flowSeen) turn(r *protos.WorkflowRequest, past []*protos.HistoryEvent) {
	f.checkEvents(r.GetInstanceId(), append(slices.Clip(past), r.GetNewEvents()...))
	hashes := make([]uint64, len(past))
	for i, e := range past {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			f.s.fail("an event of %s: %w", r.GetInstanceId(), err)
		}
		hashes[i] = xxhash.Sum64(b)
	}
	id := r.GetExecutionId().GetValue()
	f.mu.Lock()
	defer f.mu.Unlock()
	have := f.past[id]
	if n := min(len(have), len(hashes)); !slices.Equal(have[:n], hashes[:n]) {
		f.s.fail("the history of workflow %s has changed: %v is not %v", r.GetInstanceId(), hashes, have)
	}
	if len(hashes) > len(have) {
		f.past[id] = hashes
	}
}

// checkEvents checks the events of one execution.
func (f *flowSeen) checkEvents(id string, events []*protos.HistoryEvent) {
	begun, seen := map[string]time.Time{}, map[string]bool{}
	result := func(kind string, n int32) {
		what := fmt.Sprint(kind, " ", n)
		if _, ok := begun[what]; !ok {
			f.s.fail("workflow %s has a result of %s, which it has not begun", id, what)
		}
		if seen[what] {
			f.s.fail("workflow %s has two results of %s", id, what)
		}
		seen[what] = true
	}
	for _, e := range events {
		switch {
		case e.GetTaskScheduled() != nil:
			begun[fmt.Sprint("activity ", e.GetEventId())] = time.Time{}
		case e.GetChildWorkflowInstanceCreated() != nil:
			begun[fmt.Sprint("child ", e.GetEventId())] = time.Time{}
		case e.GetTimerCreated() != nil:
			begun[fmt.Sprint("timer ", e.GetEventId())] = e.GetTimerCreated().GetFireAt().AsTime()
		case e.GetTaskCompleted() != nil:
			result("activity", e.GetTaskCompleted().GetTaskScheduledId())
		case e.GetTaskFailed() != nil:
			result("activity", e.GetTaskFailed().GetTaskScheduledId())
		case e.GetChildWorkflowInstanceCompleted() != nil:
			result("child", e.GetChildWorkflowInstanceCompleted().GetTaskScheduledId())
		case e.GetChildWorkflowInstanceFailed() != nil:
			f.s.fail("a child of workflow %s has failed: %v", id, e.GetChildWorkflowInstanceFailed())
		case e.GetTimerFired() != nil:
			n := e.GetTimerFired().GetTimerId()
			result("timer", n)
			if at := begun[fmt.Sprint("timer ", n)]; time.Now().Before(at) {
				f.s.fail("timer %d of workflow %s fires %s early", n, id, time.Until(at))
			}
		case e.GetEventRaised() != nil:
			what := e.GetEventRaised().GetInput().GetValue()
			if seen[what] {
				f.s.fail("workflow %s has event %s twice: %s", id, e.GetEventRaised().GetName(), what)
			}
			seen[what] = true
		}
	}
}

// begin records that a stream has an activity, until done is called. It checks that no living stream has the activity.
func (f *flowSeen) begin(s *flowStream, r *protos.ActivityRequest) (done func()) {
	key := fmt.Sprint(r.GetWorkflowInstance().GetExecutionId().GetValue(), " ", r.GetTaskId())
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.running[key] {
		if o.lives() {
			f.s.fail("activity %d of workflow %s is handed to node %d while a stream of node %d has it", r.GetTaskId(),
				r.GetWorkflowInstance().GetInstanceId(), s.n.id, o.n.id)
		}
	}
	f.running[key] = append(f.running[key], s)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		i := slices.Index(f.running[key], s)
		f.running[key] = slices.Delete(f.running[key], i, i+1)
	}
}
