package workflows

import (
	"slices"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/api/admin/schema"
)

// steps derives the steps of a workflow from its history: when each step began, and how it ended. Its fields refer to a
// step by its place, an index into list.
type steps struct {
	list     []schema.WorkflowStep
	turns    int
	open     map[int32]int    // place in list of a step without an end, by the id of its event
	waits    map[string][]int // places of waits for events, the oldest first, by name in lower case
	runs     map[int]string   // task execution ids of activities, by place in list; SDKs may leave them empty
	attempts map[string]int   // of activities, by task execution id
	failed   []int            // places of failed activities that were not retried yet
	pauses   map[int32]int    // places of failed activities that a timer will retry, by the id of the timer
	due      []int            // places of activities whose retry timer has fired
	marked   int              // place of a suspension that has not ended; -1 = none
	stalled  int              // place of a stall that has not ended; -1 = none
	payloads bool             // keep stack traces
}

func newSteps(payloads bool) *steps {
	return &steps{open: map[int32]int{}, waits: map[string][]int{}, runs: map[int]string{}, attempts: map[string]int{},
		pauses: map[int32]int{}, marked: -1, stalled: -1, payloads: payloads}
}

// never is a year. A timer that is due in this year or later is a wait without a timeout.
const never = 9999

func timeOf(e *protos.HistoryEvent) time.Time { return e.GetTimestamp().AsTime() }

// begin adds the step that the event e begins, and returns its place.
func (s *steps) begin(e *protos.HistoryEvent, one schema.WorkflowStep) int {
	one.EventID, one.Begin = e.GetEventId(), timeOf(e)
	s.list = append(s.list, one)
	return len(s.list) - 1
}

// end records that the event e ends the step at a place, unless the step has ended already. It returns this step.
func (s *steps) end(place int, e *protos.HistoryEvent, outcome string) *schema.WorkflowStep {
	one := &s.list[place]
	if one.Outcome == "" {
		one.End, one.Outcome = timeOf(e), outcome
	}
	return one
}

// answer ends the step that the event with the given id has begun. The parameter e is the event that ends the step.
func (s *steps) answer(id int32, e *protos.HistoryEvent, outcome string, failure *protos.TaskFailureDetails) {
	if place, ok := s.open[id]; ok {
		s.end(place, e, outcome).Failure = failureOf(failure, s.payloads)
		delete(s.open, id)
	}
}

// add adds the next event of the history.
func (s *steps) add(e *protos.HistoryEvent) {
	if s.stalled >= 0 {
		s.end(s.stalled, e, schema.StepDone)
		s.stalled = -1
	}
	switch {
	case e.GetWorkflowStarted() != nil:
		s.turns++
	case e.GetTaskScheduled() != nil:
		t := e.GetTaskScheduled()
		id := t.GetTaskExecutionId()
		place := s.begin(e, schema.WorkflowStep{Kind: schema.StepActivity, Name: t.GetName(),
			App: e.GetRouter().GetTargetAppID(), Attempt: s.attempt(t.GetName(), id)})
		s.open[e.GetEventId()], s.runs[place] = place, id
	case e.GetTimerCreated() != nil:
		s.timer(e, e.GetTimerCreated())
	case e.GetChildWorkflowInstanceCreated() != nil:
		c := e.GetChildWorkflowInstanceCreated()
		s.open[e.GetEventId()] = s.begin(e, schema.WorkflowStep{Kind: schema.StepChild, Name: c.GetName(),
			Child: c.GetInstanceId(), App: e.GetRouter().GetTargetAppID()})
	case e.GetExecutionSuspended() != nil && s.marked < 0:
		s.marked = s.begin(e, schema.WorkflowStep{Kind: schema.StepSuspended})
	case e.GetExecutionResumed() != nil && s.marked >= 0:
		s.end(s.marked, e, schema.StepDone)
		s.marked = -1
	case e.GetExecutionStalled() != nil:
		s.stalled = s.begin(e, schema.WorkflowStep{Kind: schema.StepStalled,
			Name: e.GetExecutionStalled().GetDescription()})
	default:
		s.ends(e)
	}
}

// attempt returns the number of the attempt that begins now for an activity, or 0 if it is unknown. The parameter id is
// the task execution id, which may be empty.
//
// If a retry timer of the activity has fired, the result is the number of the failed attempt plus 1. The failed attempt
// is found by id, or by name if the SDK uses a new id for each attempt. If no retry timer has fired, attempt counts the
// attempts with the same id.
func (s *steps) attempt(name, id string) (n int) {
	at := slices.IndexFunc(s.due, func(place int) bool { return id != "" && s.runs[place] == id })
	if at < 0 {
		at = slices.IndexFunc(s.due, func(place int) bool { return s.list[place].Name == name })
	}
	switch {
	case at >= 0:
		before := &s.list[s.due[at]]
		before.Attempt = max(before.Attempt, 1)
		n = before.Attempt + 1
		s.due = slices.Delete(s.due, at, at+1)
	case id != "":
		n = s.attempts[id] + 1
	}
	s.attempts[id] = n
	return n
}

// pause records which failed activity will be retried when the given timer fires. This is the failed activity with the
// given task execution id. If there is none, it is the activity that failed last.
func (s *steps) pause(timer int32, id string) {
	at := len(s.failed) - 1
	for n, place := range s.failed {
		if id != "" && s.runs[place] == id {
			at = n
		}
	}
	if at >= 0 {
		s.pauses[timer] = s.failed[at]
		s.failed = slices.Delete(s.failed, at, at+1)
	}
}

// timer adds the step that begins when a timer is created: a timer, a wait for an event, or the pause before a retry.
func (s *steps) timer(e *protos.HistoryEvent, t *protos.TimerCreatedEvent) {
	one := schema.WorkflowStep{Kind: schema.StepTimer, Name: t.GetName()}
	if due := t.GetFireAt().AsTime(); due.Year() < never {
		one.Due = due
	}
	event := t.GetExternalEvent().GetName()
	switch {
	case t.GetExternalEvent() != nil:
		one.Kind, one.Name = schema.StepWait, event
	case t.GetActivityRetry() != nil || t.GetChildWorkflowRetry() != nil:
		one.Kind = schema.StepRetry
	}
	if t.GetActivityRetry() != nil {
		s.pause(e.GetEventId(), t.GetActivityRetry().GetTaskExecutionId())
	}
	place := s.begin(e, one)
	s.open[e.GetEventId()] = place
	if one.Kind == schema.StepWait {
		key := strings.ToLower(event)
		s.waits[key] = append(s.waits[key], place)
	}
}

// ends handles the events that end steps. It also adds the steps that have no duration, for example for a sent event.
func (s *steps) ends(e *protos.HistoryEvent) {
	switch {
	case e.GetTaskCompleted() != nil:
		s.answer(e.GetTaskCompleted().GetTaskScheduledId(), e, schema.StepCompleted, nil)
	case e.GetTaskFailed() != nil:
		t := e.GetTaskFailed()
		if place, ok := s.open[t.GetTaskScheduledId()]; ok {
			s.failed = append(s.failed, place)
		}
		s.answer(t.GetTaskScheduledId(), e, schema.StepFailed, t.GetFailureDetails())
	case e.GetTimerFired() != nil:
		id, outcome := e.GetTimerFired().GetTimerId(), schema.StepFired
		if place, ok := s.open[id]; ok && s.list[place].Kind == schema.StepWait {
			outcome = schema.StepTimedOut
		}
		s.answer(id, e, outcome, nil)
		if place, ok := s.pauses[id]; ok {
			s.due = append(s.due, place)
			delete(s.pauses, id)
		}
	case e.GetChildWorkflowInstanceCompleted() != nil:
		s.answer(e.GetChildWorkflowInstanceCompleted().GetTaskScheduledId(), e, schema.StepCompleted, nil)
	case e.GetChildWorkflowInstanceFailed() != nil:
		c := e.GetChildWorkflowInstanceFailed()
		s.answer(c.GetTaskScheduledId(), e, schema.StepFailed, c.GetFailureDetails())
	case e.GetEventRaised() != nil:
		s.raised(e, e.GetEventRaised().GetName())
	case e.GetEventSent() != nil:
		s.end(s.begin(e, schema.WorkflowStep{Kind: schema.StepSent, Name: e.GetEventSent().GetName(),
			Child: e.GetEventSent().GetInstanceId()}), e, schema.StepDone)
	case e.GetDetachedWorkflowInstanceCreated() != nil:
		d := e.GetDetachedWorkflowInstanceCreated()
		s.end(s.begin(e, schema.WorkflowStep{Kind: schema.StepDetached, Child: d.GetInstanceId()}), e, schema.StepDone)
	case e.GetExecutionCompleted() != nil:
		for n := range s.list {
			s.end(n, e, schema.StepCanceled)
		}
		clear(s.open)
	}
}

// raised ends the oldest open wait for the external event with the given name. Upper and lower case do not matter. If
// there is no such wait, it adds a step for the event.
func (s *steps) raised(e *protos.HistoryEvent, name string) {
	key := strings.ToLower(name)
	for len(s.waits[key]) > 0 {
		place := s.waits[key][0]
		s.waits[key] = s.waits[key][1:]
		if s.list[place].Outcome == "" {
			s.end(place, e, schema.StepReceived)
			delete(s.open, s.list[place].EventID)
			return
		}
	}
	s.end(s.begin(e, schema.WorkflowStep{Kind: schema.StepEvent, Name: name}), e, schema.StepReceived)
}

// failureOf describes a failure, with its stack trace only if payloads are shown.
func failureOf(d *protos.TaskFailureDetails, payloads bool) *schema.WorkflowFailure {
	if d == nil {
		return nil
	}
	f := &schema.WorkflowFailure{Type: short(d.GetErrorType()), Message: short(d.GetErrorMessage())}
	if payloads {
		f.Stack, _ = cut(d.GetStackTrace().GetValue())
	}
	return f
}
