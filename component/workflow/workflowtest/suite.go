package workflowtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

const (
	running    = protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING
	completed  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED
	failed     = protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED
	terminated = protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED
	continued  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW
	pending    = protos.OrchestrationStatus_ORCHESTRATION_STATUS_PENDING
	suspended  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED
	stalled    = protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED
)

// Test runs the suite against an engine. Each part of the suite uses its own applications.
func Test(t *testing.T, e workflow.Engine) {
	for _, part := range []struct {
		name string
		test func(s *suite)
	}{
		{"Chain", (*suite).chain},
		{"FanOut", (*suite).fanOut},
		{"FailedActivity", (*suite).failedActivity},
		{"Timer", (*suite).timer},
		{"ScheduledStart", (*suite).scheduledStart},
		{"ExternalEvents", (*suite).externalEvents},
		{"Children", (*suite).children},
		{"ChildWithAnIDInUse", (*suite).childWithAnIDInUse},
		{"DetachedAndSentEvents", (*suite).detachedAndSent},
		{"ContinueAsNew", (*suite).continueAsNew},
		{"SuspendAndResume", (*suite).suspendAndResume},
		{"Terminate", (*suite).terminate},
		{"TerminateWithoutWorker", (*suite).terminateWithoutWorker},
		{"Purge", (*suite).purge},
		{"PurgeOfTreesThatAreNone", (*suite).purgeTrees},
		{"PurgesAndStartsAtOnce", (*suite).purgesAndStarts},
		{"PurgeInANamespace", (*suite).purgeInANamespace},
		{"ReuseOfIDs", (*suite).reuse},
		{"Stalled", (*suite).stalls},
		{"LostWorker", (*suite).lostWorker},
		{"WorkWaitsForAWorker", (*suite).workWaits},
		{"BoundsOfAWorker", (*suite).bounds},
		{"Retention", (*suite).retention},
		{"HostileAnswers", (*suite).hostile},
		{"List", (*suite).list},
		{"Rerun", (*suite).rerun},
		{"OtherApplications", (*suite).otherApplications},
		{"OtherApplicationsAreNotControlled", (*suite).othersAreNotControlled},
		{"OtherApplicationsKeepTheirInstances", (*suite).othersKeepInstances},
		{"AnswersWithoutAToken", (*suite).withoutToken},
		{"Isolation", (*suite).isolation},
		{"LargePayloadsAndOddIDs", (*suite).largeAndOdd},
	} {
		t.Run(part.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			t.Cleanup(cancel)
			part.test(&suite{T: t, ctx: ctx, e: e, app: "wf" + strings.ToLower(part.name)})
		})
	}
}

// suite is one part of the suite.
type suite struct {
	*testing.T
	ctx context.Context
	e   workflow.Engine
	app string
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refused fails the test unless err has the code and contains the text.
func (s *suite) refused(err error, code fault.Code, text string) {
	s.Helper()
	if !fault.Is(err, code) || !strings.Contains(fault.Text(err), text) {
		s.Errorf("error %v, want code %s and the text %q", err, code, text)
	}
}

func (s *suite) connect() *Worker { return Connect(s.T, s.e, s.app) }

func (s *suite) start(id string) {
	s.Helper()
	s.must(s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: id, Name: "order",
		Input: wrapperspb.String("in-" + id)}))
}

func (s *suite) raise(id, name, data string) {
	s.Helper()
	s.must(s.e.Raise(s.ctx, s.app, &protos.RaiseEventRequest{InstanceId: id, Name: name,
		Input: wrapperspb.String(data)}))
}

// state returns the state of an instance, with payloads.
func (s *suite) state(id string) *protos.WorkflowState {
	s.Helper()
	st, err := s.e.State(s.ctx, s.app, id, true)
	s.must(err)
	return st
}

// await waits until the status of an instance satisfies until, and returns the state.
func (s *suite) await(id string, until workflow.Until) *protos.WorkflowState {
	s.Helper()
	st, err := s.e.Wait(s.ctx, s.app, id, until, true)
	s.must(err)
	return st
}

// is waits until the instance has the status want.
func (s *suite) is(id string, want protos.OrchestrationStatus) {
	s.Helper()
	for {
		st, err := s.e.State(s.ctx, s.app, id, false)
		s.must(err)
		if st.GetWorkflowStatus() == want {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.ctx.Done():
			s.Fatalf("workflow %s is %s, want %s", id, st.GetWorkflowStatus(), want)
		}
	}
}

// history returns the types of the committed events of an instance, separated by spaces.
func (s *suite) history(id string) string {
	s.Helper()
	var out []string
	for first, more := 0, true; more; {
		var page []*protos.HistoryEvent
		var err error
		page, more, err = s.e.History(s.ctx, s.app, id, first, 3)
		s.must(err)
		first += len(page)
		out = append(out, types(page)...)
	}
	return strings.Join(out, " ")
}

func types(events []*protos.HistoryEvent) []string {
	var out []string
	for _, e := range events {
		m := e.ProtoReflect()
		field := m.WhichOneof(m.Descriptor().Oneofs().ByName("eventType"))
		if field == nil {
			out = append(out, "none")
			continue
		}
		out = append(out, string(field.Name()))
	}
	return out
}

// got checks the events of a turn. The new events must be WorkflowStarted and then the given events, and past is the
// required number of past events.
func (s *suite) got(t *Turn, past int, events ...string) {
	s.Helper()
	news := types(t.GetNewEvents())
	if len(news) == 0 || news[0] != "workflowStarted" || !slices.Equal(news[1:], events) {
		s.Errorf("the new events of a turn are %v, want %v", news, events)
	}
	if len(t.GetPastEvents()) != past {
		s.Errorf("a turn has %d past events, want %d: %v", len(t.GetPastEvents()), past, types(t.GetPastEvents()))
	}
}

func (s *suite) chain() {
	w := s.connect()
	s.start("a")
	if n := s.e.Workers(s.app); n != 1 {
		s.Errorf("%d workers", n)
	}
	t := w.Turn("a")
	s.got(t, 0, "executionStarted")
	if in := t.GetNewEvents()[1].GetExecutionStarted(); in.GetName() != "order" || in.GetInput().GetValue() != "in-a" ||
		t.GetExecutionId().GetValue() == "" {
		s.Errorf("the start is %v", in)
	}
	s.must(t.Respond(&protos.WorkflowResponse{Actions: []*protos.WorkflowAction{Call(0, "pay")},
		CustomStatus: wrapperspb.String("paying")}))
	if st := s.await("a",
		workflow.Started); st.GetWorkflowStatus() != running || st.GetCustomStatus().GetValue() != "paying" {
		s.Errorf("state %v", st)
	}
	a := w.Activity("pay")
	if a.GetWorkflowInstance().GetInstanceId() != "a" || a.GetTaskExecutionId() != "pay" || a.GetTaskId() != 0 {
		s.Errorf("the activity is %v", a.ActivityRequest)
	}
	a.Return("paid")
	a.Return("again") // a second result has no effect
	t = w.Turn("a")
	s.got(t, 3, "taskCompleted")
	r := t.GetNewEvents()[1].GetTaskCompleted()
	if r.GetResult().GetValue() != "paid" || r.GetTaskExecutionId() != "pay" {
		s.Errorf("the result is %v", r)
	}
	t.Do(Complete(1, "out"))
	st := s.await("a", workflow.Completed)
	if st.GetWorkflowStatus() != completed || st.GetOutput().GetValue() != "out" ||
		st.GetInput().GetValue() != "in-a" ||
		st.GetName() != "order" || st.GetExecutionId().GetValue() == "" || st.CompletedTimestamp == nil {
		s.Errorf("state %v", st)
	}
	if got, want := s.history("a"), "workflowStarted executionStarted taskScheduled workflowStarted taskCompleted "+
		"executionCompleted"; got != want {
		s.Errorf("history %s", got)
	}
	s.raise("a", "late", "") // a terminal instance ignores the event
	w.Idle()
}

func (s *suite) fanOut() {
	const n = 50
	w := s.connect()
	s.start("a")
	var calls []*protos.WorkflowAction
	for i := range n {
		calls = append(calls, Call(int32(i), fmt.Sprintf("step%d", i)))
	}
	w.Turn("a").Do(calls...)
	for i := n - 1; i >= 0; i-- {
		w.Activity(fmt.Sprintf("step%d", i)).Return(fmt.Sprint(i))
	}
	results := map[int32]string{}
	for len(results) < n {
		t := w.Turn("a")
		for _, e := range t.GetNewEvents() {
			if r := e.GetTaskCompleted(); r != nil {
				if _, again := results[r.GetTaskScheduledId()]; again {
					s.Errorf("task %d has two results", r.GetTaskScheduledId())
				}
				results[r.GetTaskScheduledId()] = r.GetResult().GetValue()
			}
		}
		if len(results) == n {
			t.Do(Complete(n, ""))
		} else {
			t.Do()
		}
	}
	for id, r := range results {
		if fmt.Sprint(id) != r {
			s.Errorf("task %d has the result %s", id, r)
		}
	}
	s.await("a", workflow.Completed)
}

func (s *suite) failedActivity() {
	w := s.connect()
	s.start("a")
	w.Turn("a").Do(Call(0, "pay"))
	w.Activity("pay").Fail("no money")
	t := w.Turn("a")
	s.got(t, 3, "taskFailed")
	if d := t.GetNewEvents()[1].GetTaskFailed().GetFailureDetails(); d.GetErrorMessage() != "no money" {
		s.Errorf("details %v", d)
	}
	t.Do(Sleep(1, 10*time.Millisecond)) // the worker retries
	s.got(w.Turn("a").do(Call(2, "pay")), 6, "timerFired")
	w.Activity("pay").Return("")
	end := End(3, failed, "")
	end.GetCompleteWorkflow().FailureDetails = &protos.TaskFailureDetails{ErrorType: "T", ErrorMessage: "M"}
	w.Turn("a").Do(end)
	if st := s.await("a", workflow.Completed); st.GetWorkflowStatus() != failed ||
		st.GetFailureDetails().GetErrorMessage() != "M" {
		s.Errorf("state %v", st)
	}
}

// do answers the turn with actions. It returns t, so that the caller can use the turn further.
func (t *Turn) do(actions ...*protos.WorkflowAction) *Turn {
	t.Do(actions...)
	return t
}

func (s *suite) timer() {
	w := s.connect()
	s.start("a")
	begun := time.Now()
	w.Turn("a").Do(Sleep(0, 200*time.Millisecond), Sleep(1, time.Hour), Sleep(2, -time.Hour))
	t := w.Turn("a")
	for fired := map[int32]bool{}; ; t = w.Turn("a") { // on a busy machine both timers fire in one turn
		for _, e := range t.GetNewEvents()[1:] {
			if e.GetTimerFired() == nil {
				s.Fatalf("new events %v", t.GetNewEvents())
			}
			fired[e.GetTimerFired().GetTimerId()] = true
		}
		if took := time.Since(begun); !fired[2] || fired[1] || fired[0] && took < 200*time.Millisecond {
			s.Fatalf("after %v the timers %v have fired", took, fired)
		}
		if fired[0] {
			break
		}
		t.Do()
	}
	t.Do(Complete(3, ""))
	s.await("a", workflow.Completed)
	// the earliest and the last time of a timer
	s.start("b")
	first, last := Sleep(0, 0), Sleep(1, 0)
	first.GetCreateTimer().FireAt = timestamppb.New(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
	last.GetCreateTimer().FireAt = timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC))
	w.Turn("b").Do(first, last)
	t = w.Turn("b")
	if id := t.GetNewEvents()[1].GetTimerFired().GetTimerId(); id != 0 || len(t.GetNewEvents()) != 2 {
		s.Errorf("new events %v", t.GetNewEvents())
	}
	t.Do(Complete(2, ""))
	s.await("b", workflow.Completed)
}

func (s *suite) scheduledStart() {
	w := s.connect()
	parked := make(chan error, 1)
	go func() {
		_, err := s.e.Wait(s.ctx, s.app, "a", workflow.Started, false)
		parked <- err
	}()
	at := time.Now().Add(300 * time.Millisecond)
	s.must(s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: "a", Name: "order",
		ScheduledStartTimestamp: timestamppb.New(at)}))
	if st := s.state("a"); st.GetWorkflowStatus() != pending || st.GetName() != "order" {
		s.Errorf("state %v", st)
	}
	t := w.Turn("a")
	if time.Now().Before(at) {
		s.Error("the workflow began too early")
	}
	t.Do(Complete(0, ""))
	s.must(<-parked)
	s.must(s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: "b", Name: "order",
		ScheduledStartTimestamp: timestamppb.New(time.Now().Add(time.Hour))}))
	for id, year := range map[string]int{"y2500": 2500, "y9500": 9500} {
		s.must(s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: id, Name: "order",
			ScheduledStartTimestamp: timestamppb.New(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))}))
	}
	s.start("d")
	w.Turn("d").Do(func() *protos.WorkflowAction {
		a := Detach(0, "order", "detached")
		a.GetCreateDetachedWorkflow().ScheduledStartTimestamp = timestamppb.New(time.Now().AddDate(900, 0, 0))
		return a
	}())
	w.Idle()
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "b"}))
	w.Turn("b").Do()
	if st := s.await("b", workflow.Completed); st.GetWorkflowStatus() != terminated {
		s.Errorf("state %v", st)
	}
}

// inTime runs a test that must cancel a timer before it fires. limit is the length of the timer. If the machine was too
// busy for the test to be in time, attempt returns false. inTime then calls it again with another application and a
// longer timer.
func (s *suite) inTime(attempt func(s *suite, limit time.Duration) bool) {
	limit := 300 * time.Millisecond
	for n := 1; !attempt(s, limit); n++ {
		limit *= 2
		s = &suite{T: s.T, ctx: s.ctx, e: s.e, app: fmt.Sprint(s.app, n)}
	}
}

// after waits until the time at has passed.
func (s *suite) after(at time.Time) {
	select {
	case <-time.After(time.Until(at) + 100*time.Millisecond):
	case <-s.ctx.Done():
	}
}

func (s *suite) externalEvents() { s.inTime((*suite).externalEventsInTime) }

func (s *suite) externalEventsInTime(limit time.Duration) bool {
	w := s.connect()
	s.start("a")
	s.raise("a", "first", "1") // before the first turn
	t := w.Turn("a")
	for len(t.GetNewEvents()) < 3 { // the event may come with the first turn or with the next turn
		t.Do()
		t = w.Turn("a")
		if len(t.GetPastEvents()) > 0 {
			break
		}
	}
	fires := time.Now().Add(limit)
	t.Do(Await(0, "go", limit), Await(1, "go", time.Hour))
	s.raise("a", "go", "2")
	t = w.Turn("a")
	t.Do()
	if time.Now().After(fires) {
		return false
	}
	if e := t.GetNewEvents()[1].GetEventRaised(); e.GetName() != "go" || e.GetInput().GetValue() != "2" {
		s.Errorf("new events %v", t.GetNewEvents())
	}
	s.raise("a", "same", "x")
	s.raise("a", "same", "x")
	seen := map[time.Time]bool{}
	for len(seen) < 2 {
		t = w.Turn("a")
		for _, e := range t.GetNewEvents()[1:] {
			if e.GetEventRaised() == nil {
				s.Errorf("the guarded timer has fired, or something else has come: %v", e)
			}
			seen[e.GetTimestamp().AsTime()] = true
		}
		t.Do()
	}
	s.after(fires)
	w.Idle() // the cancelled timer has not fired
	s.refused(s.e.Raise(s.ctx, s.app, &protos.RaiseEventRequest{InstanceId: "none", Name: "x"}), fault.NotFound,
		"no such instance exists")
	return true
}

func (s *suite) children() {
	w := s.connect()
	s.start("a")
	w.Turn("a").Do(Child(0, "ship", "c1"), Child(1, "ship", ""), Child(2, "ship", "c3"))
	t := w.Turn("c1")
	if p := t.GetNewEvents()[1].GetExecutionStarted().GetParentInstance(); p.GetTaskScheduledId() != 0 ||
		p.GetWorkflowInstance().GetInstanceId() != "a" || p.GetName().GetValue() != "order" {
		s.Errorf("the parent is %v", p)
	}
	t.Do(Complete(0, "shipped"))
	w.Turn("a:0001").Do(End(0, failed, ""))
	w.Turn("c3").Do(End(0, terminated, ""))
	results := map[int32]string{}
	for len(results) < 3 {
		t := w.Turn("a")
		for _, e := range t.GetNewEvents() {
			if c := e.GetChildWorkflowInstanceCompleted(); c != nil {
				results[c.GetTaskScheduledId()] = c.GetResult().GetValue()
			}
			if c := e.GetChildWorkflowInstanceFailed(); c != nil {
				results[c.GetTaskScheduledId()] = "failed"
			}
		}
		if len(results) == 3 {
			t.Do(Complete(3, ""))
		} else {
			t.Do()
		}
	}
	if results[0] != "shipped" || results[1] != "failed" || results[2] != "failed" {
		s.Errorf("results %v", results)
	}
	s.await("a", workflow.Completed)
	if st := s.state("c1"); st.GetParentInstanceId().GetValue() != "a" {
		s.Errorf("the child is %v", st)
	}
}

func (s *suite) childWithAnIDInUse() {
	w := s.connect()
	s.start("busy")
	w.Turn("busy").Do()
	s.start("a")
	w.Turn("a").Do(Child(0, "ship", "busy"))
	t := w.Turn("a")
	s.got(t, 3, "childWorkflowInstanceFailed")
	d := t.GetNewEvents()[1].GetChildWorkflowInstanceFailed().GetFailureDetails()
	if !strings.Contains(d.GetErrorMessage(),
		"already exists") {
		s.Errorf("details %v", d)
	}
	t.Do(Complete(1, ""))
}

func (s *suite) detachedAndSent() {
	w := s.connect()
	s.start("a")
	w.Turn("a").Do(Detach(0, "audit", "d"), Complete(1, ""))
	t := w.Turn("d")
	if in := t.GetNewEvents()[1].GetExecutionStarted(); in.GetParentInstance() != nil || in.GetName() != "audit" {
		s.Errorf("the start is %v", in)
	}
	t.Do()
	s.start("b")
	w.Turn("b").Do(Send(0, "d", "hello", "x"), Send(1, "nosuch", "hello", ""))
	t = w.Turn("d")
	if e := t.GetNewEvents()[1].GetEventRaised(); e.GetName() != "hello" || e.GetInput().GetValue() != "x" {
		s.Errorf("new events %v", t.GetNewEvents())
	}
	t.Do(Complete(0, ""))
	s.await("d", workflow.Completed)
}

func (s *suite) continueAsNew() { s.inTime((*suite).continueAsNewInTime) }

func (s *suite) continueAsNewInTime(limit time.Duration) bool {
	w := s.connect()
	s.start("a")
	first := s.state("a").GetExecutionId().GetValue()
	t := w.Turn("a")
	fires := time.Now().Add(limit)
	t.Do(Call(0, "slow"), Sleep(1, limit))
	slow := w.Activity("slow")
	s.raise("a", "kept", "k")
	t = w.Turn("a")
	event := t.GetNewEvents()[1]
	t.Do(End(2, continued, "second", event))
	if time.Now().After(fires) {
		return false
	}
	t = w.Turn("a")
	s.got(t, 0, "executionStarted", "eventRaised")
	in := t.GetNewEvents()[1].GetExecutionStarted()
	if in.GetInput().GetValue() != "second" || in.GetName() != "order" ||
		in.GetWorkflowInstance().GetExecutionId().GetValue() == first {
		s.Errorf("the start is %v", in)
	}
	t.Do(Call(0, "other"), Await(1, "never", time.Hour))
	slow.Return("stale") // from the earlier execution; the new execution uses the same id
	other := w.Activity("other")
	s.after(fires)
	w.Idle() // the timer of the earlier execution has not fired
	other.Return("fresh")
	t = w.Turn("a")
	s.got(t, 5, "taskCompleted")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "fresh" {
		s.Errorf("the result is %s", r)
	}
	t.Do(Complete(2, "end"))
	if st := s.await("a",
		workflow.Completed); st.GetOutput().GetValue() != "end" || st.GetInput().GetValue() != "second" {
		s.Errorf("state %v", st)
	}
	// many generations in a row
	s.start("b")
	for i := range 30 {
		w.Turn("b").Do(End(0, continued, fmt.Sprint(i)))
	}
	w.Turn("b").Do(Complete(0, ""))
	s.await("b", workflow.Completed)
	return true
}

func (s *suite) suspendAndResume() {
	w := s.connect()
	s.start("a")
	w.Turn("a").Do()
	s.must(s.e.Suspend(s.ctx, s.app, &protos.SuspendRequest{InstanceId: "a", Reason: wrapperspb.String("why")}))
	t := w.Turn("a")
	s.got(t, 2, "executionSuspended")
	t.Do()
	if st := s.await("a", workflow.Suspended); st.GetWorkflowStatus() != suspended {
		s.Errorf("state %v", st)
	}
	s.must(s.e.Suspend(s.ctx, s.app, &protos.SuspendRequest{InstanceId: "a"}))
	w.Idle() // a second suspension has no effect
	s.raise("a", "x", "")
	w.Turn("a").Do() // the worker keeps the event
	s.is("a", suspended)
	s.must(s.e.Resume(s.ctx, s.app, &protos.ResumeRequest{InstanceId: "a"}))
	w.Turn("a").Do(Complete(0, ""))
	s.await("a", workflow.Resumed)
	s.await("a", workflow.Completed)
}

func (s *suite) terminate() {
	w := s.connect()
	s.start("a")
	w.Turn("a").Do(Child(0, "ship", "c"), Call(1, "slow"))
	w.Turn("c").Do(Child(0, "ship", "cc"))
	w.Turn("cc").Do()
	slow := w.Activity("slow")
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "a", Recursive: true,
		Output: wrapperspb.String("bye")}))
	t := w.Turn("a")
	s.got(t, 4, "executionTerminated")
	t.Do(End(2, terminated, "bye"))
	w.Turn("c").Do()
	w.Turn("cc").Do(End(0, continued, "again")) // a terminated instance does not continue
	for _, id := range []string{"a", "c", "cc"} {
		if st := s.await(id,
			workflow.Completed); st.GetWorkflowStatus() != terminated || st.GetOutput().GetValue() != "bye" {
			s.Errorf("%s: %v", id, st)
		}
	}
	slow.Return("late")
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "a"}))
	w.Idle()
	s.refused(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "none"}), fault.NotFound,
		"no such instance exists")
	// without recursion, the child goes on
	s.start("b")
	w.Turn("b").Do(Child(0, "ship", "d"))
	w.Turn("d").Do()
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "b"}))
	w.Turn("b").Do()
	s.await("b", workflow.Completed)
	s.is("d", running)
}

func (s *suite) terminateWithoutWorker() {
	s.start("a")
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "a"}))
	if st := s.await("a", workflow.Completed); st.GetWorkflowStatus() != terminated {
		s.Errorf("state %v", st)
	}
}

func (s *suite) purge() {
	w := s.connect()
	purge := func(id string, recursive, force bool) (int, error) {
		return s.e.Purge(s.ctx, s.app, id, recursive,
			force)
	}
	s.start("a")
	w.Turn("a").Do(Child(0, "ship", "c"))
	w.Turn("c").Do()
	_, err := purge("a", true, false)
	s.refused(err, fault.Invalid, "orchestration has not yet completed")
	_, err = purge("none", true, false)
	s.refused(err, fault.NotFound, "no such instance exists")
	s.raise("c", "end", "")
	w.Turn("c").Do(Complete(0, ""))
	w.Turn("a").Do(Complete(1, ""))
	s.await("a", workflow.Completed)
	n, err := purge("a", true, false)
	if s.must(err); n != 2 {
		s.Errorf("%d removed", n)
	}
	for _, id := range []string{"a", "c"} {
		_, err = s.e.State(s.ctx, s.app, id, false)
		s.refused(err, fault.NotFound, "no such instance exists")
	}
	s.start("f")
	w.Turn("f").Do(Sleep(0, time.Hour))
	n, err = purge("f", false, true)
	if s.must(err); n != 1 {
		s.Errorf("%d removed by force", n)
	}
	for _, id := range []string{"m1", "m2", "m3"} {
		s.start(id)
		if id == "m3" {
			w.Turn(id).Do()
			continue
		}
		w.Turn(id).Do(Complete(0, ""))
		s.await(id, workflow.Completed)
	}
	n, complete, err := s.e.PurgeMatching(s.ctx, s.app,
		workflow.Filter{Statuses: []protos.OrchestrationStatus{completed}},
		true)
	if s.must(err); n != 2 || !complete {
		s.Errorf("%d removed, complete %v", n, complete)
	}
	s.is("m3", running)
	s.start("p") // the running child of p must not keep other instances from being purged
	w.Turn("p").Do(Child(0, "ship", "q"), Complete(1, ""))
	w.Turn("q").Do()
	s.start("r")
	w.Turn("r").Do(Complete(0, ""))
	s.await("p", workflow.Completed)
	s.await("r", workflow.Completed)
	n, complete, err = s.e.PurgeMatching(s.ctx, s.app, workflow.Filter{}, true)
	s.refused(err, fault.Invalid, "orchestration has not yet completed")
	if n != 1 || complete {
		s.Errorf("%d removed, complete %v", n, complete)
	}
	s.start("a") // the id can be used again after the purge
	w.Turn("a").Do(Complete(0, ""))
	s.await("a", workflow.Completed)
}

// purgeTrees checks that a purge removes only true children. In the test, some children cannot be started, because
// their ids belong to other instances or to the parent itself. The test also purges two instances that are children of
// each other.
func (s *suite) purgeTrees() {
	w := s.connect()
	finish := func(id string) {
		w.Turn(id).Do(Complete(9, ""))
		s.await(id, workflow.Completed)
	}
	for _, id := range []string{"ended", "runs"} {
		s.start(id)
	}
	finish("ended")
	w.Turn("runs").Do()
	s.start("a")
	w.Turn("a").Do(Child(0, "ship", "a"), Child(1, "ship", "runs"), Child(2, "ship", "c"))
	w.Turn("c").Do(Child(0, "ship", "a"), Child(1, "ship", "c"), Child(2, "ship", "runs"))
	for _, id := range []string{"c", "a"} { // c ends first, so a still runs while its child c names a
		for failed := 0; ; {
			t := w.Turn(id)
			failed += strings.Count(strings.Join(types(t.GetNewEvents()), " "), "Failed")
			if id == "a" && failed == 2 || failed == 3 {
				t.Do(Complete(9, ""))
				break
			}
			t.Do()
		}
		s.await(id, workflow.Completed)
	}
	n, err := s.e.Purge(s.ctx, s.app, "a", true, false)
	if s.must(err); n != 2 {
		s.Errorf("%d removed, want a and c", n)
	}
	s.is("runs", running)
	s.is("ended", completed)
	// two instances that are children of each other
	s.start("x")
	w.Turn("x").Do(Child(0, "ship", "y"), Complete(1, ""))
	w.Turn("y").Do(Child(0, "ship", "x"), Complete(1, ""))
	w.Turn("x").Do(Child(0, "ship", "y"), Complete(1, ""))
	w.Turn("y").Do(Child(0, "ship", "x"), Complete(1, ""))
	finish("x")
	s.await("y", workflow.Completed)
	n, err = s.e.Purge(s.ctx, s.app, "y", true, true)
	if s.must(err); n != 2 {
		s.Errorf("%d removed, want x and y", n)
	}
}

// purgesAndStarts concurrently starts and purges instances with the same id, and checks that every call returns.
func (s *suite) purgesAndStarts() {
	for range 20 {
		done := make(chan error, 40)
		for n := range cap(done) {
			go func() {
				if n%2 == 0 {
					done <- s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: "a", Name: "order"})
					return
				}
				_, err := s.e.Purge(s.ctx, s.app, "a", false, true)
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil && !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.NotFound) {
				s.Fatal(err)
			}
		}
	}
	if _, err := s.e.Purge(s.ctx, s.app, "a", false, true); err != nil && !fault.Is(err, fault.NotFound) {
		s.Error(err)
	}
	s.start("a")
	s.connect().Turn("a").Do(Complete(0, ""))
	s.await("a", workflow.Completed)
}

func (s *suite) purgeInANamespace() {
	app := &suite{T: s.T, ctx: s.ctx, e: s.e, app: "prod/" + s.app}
	bank := &suite{T: s.T, ctx: s.ctx, e: s.e, app: "prod/" + s.app + "bank"}
	other := &suite{T: s.T, ctx: s.ctx, e: s.e, app: s.app + "bank"} // in the default namespace
	w, b, o := app.connect(), bank.connect(), other.connect()
	app.start("a")
	other.start("c")
	o.Turn("c").Do(Complete(0, ""))
	other.await("c", workflow.Completed)
	child := In(s.app+"bank", Child(0, "ship", "c"))
	child.Router.TargetAppNamespace = proto.String("prod")
	w.Turn("a").Do(child)
	b.Turn("c").Do(Complete(0, ""))
	w.Turn("a").Do(Complete(1, ""))
	app.await("a", workflow.Completed)
	n, err := s.e.Purge(s.ctx, app.app, "a", true, false)
	if s.must(err); n != 2 {
		s.Errorf("%d removed, want the parent and its child", n)
	}
	other.is("c", completed)
}

func (s *suite) reuse() {
	w := s.connect()
	s.start("a")
	again := func(unique bool) error {
		return s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: "a", Name: "order",
			EnforceUniqueInstanceId: unique, Input: wrapperspb.String("again")})
	}
	s.refused(again(false), fault.Conflict, "an active workflow with ID 'a' already exists")
	w.Turn("a").Do(Child(0, "ship", "c"), Complete(1, ""))
	s.await("a", workflow.Completed)
	w.Turn("c").Do()
	s.refused(again(true), fault.Conflict, "a workflow with ID 'a' already exists and the create enforces instance ID "+
		"uniqueness")
	s.refused(again(false), fault.Conflict, "cannot recreate workflow with ID 'a': child workflow 'c'")
	s.raise("c", "end", "")
	w.Turn("c").Do(Complete(0, ""))
	s.await("c", workflow.Completed)
	s.must(again(false))
	t := w.Turn("a")
	s.got(t, 0, "executionStarted")
	t.Do(Complete(0, "second"))
	if st := s.await("a",
		workflow.Completed); st.GetOutput().GetValue() != "second" || st.GetInput().GetValue() != "again" {
		s.Errorf("state %v", st)
	}
}

func (s *suite) stalls() {
	w := s.connect()
	s.start("a")
	s.must(w.Turn("a").Respond(&protos.WorkflowResponse{Version: &protos.WorkflowVersion{Patches: []string{"p1",
		"p2"}}}))
	s.raise("a", "x", "")
	s.must(w.Turn("a").Respond(&protos.WorkflowResponse{Version: &protos.WorkflowVersion{Patches: []string{"p1"}},
		Actions: []*protos.WorkflowAction{Call(0, "never")}}))
	s.is("a", stalled)
	w.Idle()
	s.refused(s.e.Raise(s.ctx, s.app, &protos.RaiseEventRequest{InstanceId: "a", Name: "y"}), fault.Invalid,
		"workflow is stalled")
	w.Reconnect() // perhaps a newer worker
	t := w.Turn("a")
	s.got(t, 3, "eventRaised")
	s.must(t.Respond(&protos.WorkflowResponse{Version: &protos.WorkflowVersion{Patches: []string{"p1", "p2"}},
		Actions: []*protos.WorkflowAction{Complete(0, "")}}))
	s.await("a", workflow.Completed)
	if got, want := s.history("a"), "workflowStarted executionStarted executionStalled workflowStarted eventRaised "+
		"executionCompleted"; got != want {
		s.Errorf("history %s", got)
	}
}

func (s *suite) lostWorker() {
	w := s.connect()
	s.start("a")
	lost := w.Turn("a")
	w.Reconnect()
	t := w.Turn("a")
	s.must(lost.Respond(&protos.WorkflowResponse{Actions: []*protos.WorkflowAction{Complete(0, "lost")}}))
	t.Do(Call(0, "pay"))
	old := w.Activity("pay")
	w.Reconnect()
	a := w.Activity("pay")
	old.Return("old")
	a.Return("new")
	t = w.Turn("a")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "new" {
		s.Errorf("the result is %s", r)
	}
	t.Do(Complete(1, "end"))
	if st := s.await("a", workflow.Completed); st.GetOutput().GetValue() != "end" {
		s.Errorf("state %v", st)
	}
	if got := strings.Count(s.history("a"), "taskCompleted"); got != 1 {
		s.Errorf("the task has %d results", got)
	}
}

func (s *suite) workWaits() {
	s.start("a")
	s.raise("a", "x", "")
	if st := s.state("a"); st.GetWorkflowStatus() != pending {
		s.Errorf("state %v", st)
	}
	w := s.connect()
	w.Turn("a").Do(Complete(0, ""))
	s.await("a", workflow.Completed)
	w.Disconnect()
	if n := s.e.Workers(s.app); n != 0 {
		s.Errorf("%d workers", n)
	}
}

func (s *suite) bounds() {
	w := ConnectAs(s.T, s.e, s.app, workflow.Worker{MaxTurns: 1, MaxActivities: 2})
	for _, id := range []string{"a", "b"} {
		s.start(id)
	}
	t := w.Turn("a")
	w.Idle()
	t.Do(Call(0, "one"), Call(1, "two"), Call(2, "three"))
	w.Turn("b").Do(Complete(0, ""))
	var open []*Activity
	for len(open) < 2 {
		s.must(w.take(patience))
		open, w.activities = append(open, w.activities...), nil
	}
	w.Idle()
	open[0].Return("")
	t = w.Turn("a")
	s.must(w.take(patience))
	if len(w.activities) != 1 {
		s.Fatalf("the third activity is %v", w.activities)
	}
	t.Do(Complete(3, ""))
	s.await("a", workflow.Completed)
}

// gone waits until an instance does not exist any more.
func (s *suite) gone(id string) {
	s.Helper()
	for {
		st, err := s.e.State(s.ctx, s.app, id, false)
		if fault.Is(err, fault.NotFound) {
			return
		}
		s.must(err)
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.ctx.Done():
			s.Fatalf("workflow %s is %s and still there", id, st.GetWorkflowStatus())
		}
	}
}

func (s *suite) retention() {
	w := ConnectAs(s.T, s.e, s.app, workflow.Worker{Retention: workflow.Retention{Completed: 1,
		Terminated: 200 * time.Millisecond}})
	for _, id := range []string{"completed", "failed", "terminated", "next"} {
		s.start(id)
	}
	w.Turn("failed").Do(End(0, failed, ""))
	w.Turn("next").Do(End(0, continued, ""))
	w.Turn("next").Do(Complete(0, ""))
	w.Turn("completed").Do(Complete(0, ""))
	w.Turn("terminated").Do(End(0, terminated, ""))
	for _, id := range []string{"completed", "next", "terminated"} {
		s.gone(id)
	}
	s.is("failed", failed)
	s.start("terminated") // the retention of the earlier instance does not end this one
	w.Turn("terminated").Do()
	w.Idle()
	s.is("terminated", running)
}

func (s *suite) hostile() {
	w := s.connect()
	s.start("a")
	t := w.Turn("a")
	err := t.Respond(&protos.WorkflowResponse{Actions: []*protos.WorkflowAction{Call(0, "x"), Call(0, "y")}})
	s.refused(err, fault.Invalid, "the id 0")
	s.is("a", pending) // no part of the answer was applied
	t = w.Turn("a")    // the turn comes again
	s.got(t, 0, "executionStarted")
	ctx := s.ctx
	for _, r := range []*protos.WorkflowResponse{
		{InstanceId: "a", CompletionToken: "forged", Actions: []*protos.WorkflowAction{Complete(0, "forged")}},
		{InstanceId: "none", CompletionToken: t.Token, Actions: []*protos.WorkflowAction{Complete(0, "forged")}},
		{InstanceId: strings.Repeat("x", 2000)}, {},
	} {
		_ = s.e.CompleteTurn(ctx, s.app, r) // ignored or refused
	}
	for _, r := range []*protos.ActivityResponse{{InstanceId: "a", TaskId: 77}, {InstanceId: "none"},
		{InstanceId: "a", TaskId: -1, CompletionToken: t.Token}, {}} {
		_ = s.e.CompleteActivity(ctx, s.app, r)
	}
	t.Do(Call(0, "pay"))
	a := w.Activity("pay")
	s.must(s.e.CompleteActivity(ctx, s.app, &protos.ActivityResponse{InstanceId: "a", TaskId: 0,
		CompletionToken: "forged",
		Result:          wrapperspb.String("forged")}))
	a.Return("true")
	t = w.Turn("a")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "true" {
		s.Errorf("the result is %s", r)
	}
	t.Do(Complete(1, "end"))
	if st := s.await("a", workflow.Completed); st.GetOutput().GetValue() != "end" {
		s.Errorf("state %v", st)
	}
}

func (s *suite) list() {
	w := s.connect()
	var want []string
	for i := range 7 {
		id := fmt.Sprintf("i%d", (i*5)%7) // not in the order of their names
		want = append(want, id)
		s.start(id)
		if i < 2 {
			w.Turn(id).Do(Complete(0, ""))
			s.await(id, workflow.Completed)
		}
	}
	page := func(f workflow.Filter, limit int) []string {
		var ids []string
		for after, n := "", 0; ; n++ {
			list, next, err := s.e.List(s.ctx, s.app, f, after, limit)
			s.must(err)
			if len(list) > limit || n > 10 {
				s.Fatalf("%d instances on page %d", len(list), n)
			}
			for _, l := range list {
				ids = append(ids, l.ID)
			}
			if after = next; next == "" {
				return ids
			}
		}
	}
	if got := page(workflow.Filter{}, 3); !slices.Equal(got, want) {
		s.Errorf("listed %v, want %v", got, want)
	}
	if got := page(workflow.Filter{Statuses: []protos.OrchestrationStatus{completed}}, 1); !slices.Equal(got,
		want[:2]) {
		s.Errorf("completed are %v, want %v", got, want[:2])
	}
	if got := page(workflow.Filter{Prefix: "i3"}, 5); !slices.Equal(got, []string{"i3"}) {
		s.Errorf("with the prefix i3: %v", got)
	}
	if got := page(workflow.Filter{Name: "other"}, 5); len(got) != 0 {
		s.Errorf("of another workflow: %v", got)
	}
	if got := page(workflow.Filter{CreatedFrom: time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
		CreatedTo: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}, 5); !slices.Equal(got, want) {
		s.Errorf("of all times: %v, want %v", got, want)
	}
	if got := page(workflow.Filter{CreatedTo: time.Now().Add(-time.Hour)}, 5); len(got) != 0 {
		s.Errorf("older than an hour: %v", got)
	}
	_, _, err := s.e.List(s.ctx, s.app, workflow.Filter{}, "not a token", 5)
	if err != nil && !fault.Is(err, fault.Invalid) {
		s.Errorf("an odd token: %v", err)
	}
	apps, err := s.e.Applications(s.ctx)
	s.must(err)
	if !slices.Contains(apps, workflow.Application{ID: s.app, Workers: 1}) {
		s.Errorf("the application with one worker is not in the list %v", apps)
	}
}

func (s *suite) rerun() {
	w := s.connect()
	s.start("a")
	rerun := func(id uint32, to string) (string, error) {
		r := &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "a", EventID: id, OverwriteInput: true,
			Input: wrapperspb.String("other")}
		if to != "" {
			r.NewInstanceID = proto.String(to)
		}
		return s.e.Rerun(s.ctx, s.app, r)
	}
	w.Turn("a").Do(Call(0, "one"))
	_, err := rerun(0, "b")
	s.refused(err, fault.Invalid, "is not in a terminal state")
	w.Activity("one").Return("1")
	w.Turn("a").Do(Call(1, "two"))
	w.Activity("two").Return("2")
	w.Turn("a").Do(Complete(2, ""))
	s.await("a", workflow.Completed)
	id, err := rerun(1, "b")
	if s.must(err); id != "b" {
		s.Errorf("the id is %s", id)
	}
	a := w.Activity("two")
	if a.GetInput().GetValue() != "other" || a.GetWorkflowInstance().GetInstanceId() != "b" {
		s.Errorf("the activity is %v", a.ActivityRequest)
	}
	a.Return("3")
	t := w.Turn("b")
	s.got(t, 6, "taskCompleted")
	t.Do(Complete(2, "again"))
	if st := s.await("b", workflow.Completed); st.GetOutput().GetValue() != "again" {
		s.Errorf("state %v", st)
	}
	_, err = rerun(1, "b")
	s.refused(err, fault.Conflict, "workflow 'b' has already been created")
	s.start("late") // the timer of this instance must not fire in the copy either
	far := Sleep(0, 0)
	far.GetCreateTimer().FireAt = timestamppb.New(time.Date(2900, 1, 1, 0, 0, 0, 0, time.UTC))
	w.Turn("late").Do(far, Call(1, "late"), Complete(2, ""))
	w.Activity("late")
	s.await("late", workflow.Completed)
	_, err = s.e.Rerun(s.ctx, s.app, &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "late", EventID: 1,
		NewInstanceID: proto.String("copy")})
	s.must(err)
	if a := w.Activity("late"); a.GetWorkflowInstance().GetInstanceId() != "copy" {
		s.Errorf("the activity is of %v", a.GetWorkflowInstance())
	}
	w.Idle()
	_, err = rerun(9, "x")
	s.refused(err, fault.NotFound, "does not have history event with ID '9'")
	_, err = s.e.Rerun(s.ctx, s.app, &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "none"})
	s.refused(err, fault.NotFound, "workflow instance does not exist with ID 'none'")
	if id, err = rerun(0, ""); err != nil || id == "" || id == "a" {
		s.Errorf("rerun without an id: %q, %v", id, err)
	}
}

func (s *suite) otherApplications() {
	w, bank := s.connect(), Connect(s.T, s.e, s.app+"bank")
	s.start("a")
	transfer := In(s.app+"bank", Call(0, "transfer"))
	transfer.Router.TargetAppNamespace = proto.String("default")
	w.Turn("a").Do(transfer, In(s.app+"bank", Child(1, "audit", "c")))
	bank.Activity("transfer").Return("done")
	t := bank.Turn("c")
	if p := t.GetNewEvents()[1].GetExecutionStarted().GetParentInstance(); p.GetAppID() != s.app {
		s.Errorf("the parent is %v", p)
	}
	t.Do(Complete(0, "audited"))
	results := map[string]bool{}
	for len(results) < 2 {
		t := w.Turn("a")
		for _, e := range t.GetNewEvents() {
			if e.GetTaskCompleted().GetResult().GetValue() == "done" {
				results["task"] = true
			}
			if e.GetChildWorkflowInstanceCompleted().GetResult().GetValue() == "audited" {
				results["child"] = true
			}
		}
		if len(results) == 2 {
			t.Do(Complete(2, ""))
		} else {
			t.Do()
		}
	}
	s.await("a", workflow.Completed)
	if _, err := s.e.State(s.ctx, s.app+"bank", "c", false); err != nil {
		s.Error(err)
	}
}

// othersAreNotControlled checks that a workflow can neither send events to workflows of another application nor
// terminate them.
func (s *suite) othersAreNotControlled() {
	w := s.connect()
	victim := &suite{T: s.T, ctx: s.ctx, e: s.e, app: s.app + "bank"}
	bank := victim.connect()
	victim.start("v")
	bank.Turn("v").Do()
	s.start("a")
	for _, action := range []*protos.WorkflowAction{Send(0, "v", "hello", "x"), Kill(0, "v")} {
		err := w.Turn("a").Respond(&protos.WorkflowResponse{
			Actions: []*protos.WorkflowAction{In(victim.app, action)}})
		s.refused(err, fault.Invalid, "of application '"+victim.app+"'")
	}
	// v exists already and is not a child of a, so v does not end with a
	w.Turn("a").Do(In(victim.app, Child(0, "ship", "v")))
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "a", Recursive: true}))
	for {
		t := w.Turn("a")
		ended := slices.Contains(types(t.GetNewEvents()), "executionTerminated")
		if t.Do(); ended {
			break
		}
	}
	s.await("a", workflow.Completed)
	bank.Idle()
	victim.is("v", running)
}

// othersKeepInstances checks that an application cannot replace an instance of another application by starting one with
// the same id. There is one exception: a parent may replace its own child.
func (s *suite) othersKeepInstances() {
	w := s.connect()
	victim := &suite{T: s.T, ctx: s.ctx, e: s.e, app: s.app + "bank"}
	bank := victim.connect()
	victim.start("v")
	bank.Turn("v").Do(Complete(0, "precious"))
	victim.await("v", workflow.Completed)
	s.start("a")
	w.Turn("a").Do(In(victim.app, Child(0, "ship", "v")), In(victim.app, Detach(1, "ship", "v")))
	t := w.Turn("a")
	s.got(t, 4, "childWorkflowInstanceFailed")
	bank.Idle()
	if st := victim.await("v", workflow.Completed); st.GetOutput().GetValue() != "precious" {
		s.Errorf("the instance of the other application is %v", st)
	}
	// the next execution of the parent may replace its own child
	t.Do(In(victim.app, Child(2, "ship", "mine")))
	bank.Turn("mine").Do(Complete(0, "first"))
	w.Turn("a").Do(End(3, continued, ""))
	w.Turn("a").Do(In(victim.app, Child(0, "ship", "mine")))
	bank.Turn("mine").Do(End(0, continued, "again"))
	bank.Turn("mine").Do()
	// a child that has continued as new still ends with its parent
	s.must(s.e.Terminate(s.ctx, s.app, &protos.TerminateRequest{InstanceId: "a", Recursive: true}))
	w.Turn("a").Do()
	bank.Turn("mine").Do()
	if st := victim.await("mine", workflow.Completed); st.GetWorkflowStatus() != terminated {
		s.Errorf("the child is %v", st)
	}
}

// withoutToken completes activities without a completion token, as older workers do. If the instances of two
// applications have the same id, such an answer may match two activities. The engine must then refuse it.
func (s *suite) withoutToken() {
	w := s.connect()
	bank := &suite{T: s.T, ctx: s.ctx, e: s.e, app: s.app + "bank"}
	b := bank.connect()
	s.start("a")
	bank.start("a")
	w.Turn("a").Do(In(bank.app, Call(0, "theirs")))
	b.Turn("a").Do(Call(0, "mine"))
	theirs, mine := b.Activity("theirs"), b.Activity("mine")
	blind := func(result string) error {
		return s.e.CompleteActivity(s.ctx, bank.app, &protos.ActivityResponse{InstanceId: "a",
			Result: wrapperspb.String(result)})
	}
	s.refused(blind("x"), fault.Invalid, "no completion token")
	theirs.Return("theirs")
	t := w.Turn("a")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "theirs" {
		s.Errorf("the result is %s", r)
	}
	t.Do(Complete(1, ""))
	s.must(blind("mine"))
	t = b.Turn("a")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "mine" {
		s.Errorf("the result is %s", r)
	}
	mine.Return("again")
	t.Do(Complete(1, ""))
	bank.await("a", workflow.Completed)
}

func (s *suite) isolation() {
	other := s.app + "other"
	w := Connect(s.T, s.e, other)
	s.start("a")
	w.Idle()
	_, err := s.e.State(s.ctx, other, "a", false)
	s.refused(err, fault.NotFound, "no such instance exists")
	list, _, err := s.e.List(s.ctx, other, workflow.Filter{}, "", 10)
	if s.must(err); len(list) != 0 {
		s.Errorf("another application sees %v", list)
	}
	mine := s.connect()
	t := mine.Turn("a")
	// another application answers with the token of the turn
	_ = s.e.CompleteTurn(s.ctx, other, &protos.WorkflowResponse{InstanceId: "a", CompletionToken: t.Token,
		Actions: []*protos.WorkflowAction{Complete(0, "stolen")}})
	t.Do(Call(0, "pay"))
	a := mine.Activity("pay")
	_ = s.e.CompleteActivity(s.ctx, other, &protos.ActivityResponse{InstanceId: "a", CompletionToken: a.Token,
		Result: wrapperspb.String("stolen")})
	a.Return("mine")
	t = mine.Turn("a")
	if r := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); r != "mine" {
		s.Errorf("the result is %s", r)
	}
	t.Do(Complete(1, ""))
	s.await("a", workflow.Completed)
}

func (s *suite) largeAndOdd() {
	w := s.connect()
	big := strings.Repeat("x", 1<<20)
	for _, id := range []string{"with space", "a||b", "ünïcode/…", "%2F", strings.Repeat("l", 300)} {
		s.must(s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: id, Name: "order",
			Input: wrapperspb.String(big)}))
		t := w.Turn(id)
		if got := t.GetNewEvents()[1].GetExecutionStarted().GetInput().GetValue(); got != big {
			s.Errorf("%q: the input has %d bytes", id, len(got))
		}
		t.Do(Call(0, "pay"))
		w.Activity("pay").Return(big)
		t = w.Turn(id)
		if got := t.GetNewEvents()[1].GetTaskCompleted().GetResult().GetValue(); got != big {
			s.Errorf("%q: the result has %d bytes", id, len(got))
		}
		if got := t.GetPastEvents()[1].GetExecutionStarted().GetInput().GetValue(); got != big {
			s.Errorf("%q: the input has %d bytes in the history", id, len(got))
		}
		t.Do(Complete(1, big))
		if st := s.await(id, workflow.Completed); st.GetOutput().GetValue() != big {
			s.Errorf("%q: the output has %d bytes", id, len(st.GetOutput().GetValue()))
		}
	}
	err := s.e.Start(s.ctx, s.app, &protos.CreateInstanceRequest{InstanceId: strings.Repeat("x", 5000), Name: "order"})
	if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
		s.Errorf("an id of 5000 bytes: %v", err)
	}
}
