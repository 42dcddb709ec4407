package turn

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// act applies one action.
func (a *applier) act(action *protos.WorkflowAction) error {
	switch v := action.GetWorkflowActionType().(type) {
	case *protos.WorkflowAction_CompleteWorkflow:
		return a.complete(action.GetId(), v.CompleteWorkflow)
	case *protos.WorkflowAction_TerminateWorkflow:
		return a.terminate(action, v.TerminateWorkflow)
	case *protos.WorkflowAction_ScheduleTask:
		return a.schedule(action, v.ScheduleTask)
	case *protos.WorkflowAction_CreateTimer:
		return a.timer(action, v.CreateTimer)
	case *protos.WorkflowAction_CreateChildWorkflow:
		return a.child(action, v.CreateChildWorkflow)
	case *protos.WorkflowAction_CreateDetachedWorkflow:
		return a.detached(action, v.CreateDetachedWorkflow)
	case *protos.WorkflowAction_SendEvent:
		return a.send(action, v.SendEvent)
	}
	return invalid(a.ID, "action %d has no type that is known", action.GetId())
}

// claim records that the id of an action is used. It returns an error in these cases:
//
//   - The id is negative.
//   - The id was already used in this generation.
//   - The used ids in the history of this generation have more than MaxGaps gaps.
func (a *applier) claim(action *protos.WorkflowAction) error {
	id := action.GetId()
	if id < 0 {
		return invalid(a.ID, "action %d has a negative id", id)
	}
	if _, again := a.used[id]; again || a.History.used.has(id) {
		return invalid(a.ID, "the id %d of an action was used before in this execution", id)
	}
	if len(a.History.used) > MaxGaps {
		return invalid(a.ID, "the ids of its actions have more than %d gaps", MaxGaps)
	}
	if a.used == nil {
		a.used = map[int32]struct{}{}
	}
	a.used[id] = struct{}{}
	return nil
}

// bounded returns an error if a text has more than limit bytes or contains a zero byte. If required is true, an empty
// text is also an error. The parameter what describes the text in the error.
func (a *applier) bounded(what, value string, limit int, required bool) error {
	switch {
	case required && value == "":
		return invalid(a.ID, "%s is empty", what)
	case len(value) > limit:
		return invalid(a.ID, "%s has %d bytes, the limit is %d", what, len(value), limit)
	case strings.IndexByte(value, 0) >= 0:
		return invalid(a.ID, "%s has a zero byte", what)
	}
	return nil
}

// target returns the application that an action addresses, and the router for the events of this action. It returns an
// error if the application id is invalid or the namespace is not that of the instance.
func (a *applier) target(action *protos.WorkflowAction) (app string, r *protos.TaskRouter, err error) {
	r = &protos.TaskRouter{SourceAppID: a.App}
	app = a.App
	if asked := action.GetRouter(); asked.GetTargetAppID() != "" {
		app = asked.GetTargetAppID()
		if !ValidApp(app) {
			return "", nil, invalid(a.ID, "the target of action %d is no valid id of an application", action.GetId())
		}
		if ns := asked.GetTargetAppNamespace(); ns != "" {
			if ns != a.namespace() {
				return "", nil, invalid(a.ID, "action %d is for another namespace", action.GetId())
			}
			r.TargetAppNamespace = proto.String(ns)
		}
		r.TargetAppID = proto.String(app)
		app = beside(a.App, app)
	}
	return app, r, nil
}

// home returns the router of an action that may address only the workflow's own application, such as sending an event.
// It returns an error if the action addresses another application. The parameter what describes the action in this
// error.
func (a *applier) home(action *protos.WorkflowAction, what string) (*protos.TaskRouter, error) {
	app, router, err := a.target(action)
	if err == nil && app != a.App {
		err = invalid(a.ID, "action %d %s of application '%s'; a workflow may only call activities and start "+
			"workflows of other applications", action.GetId(), what, action.GetRouter().GetTargetAppID())
	}
	return router, err
}

// namespace returns the namespace of the instance. This is State.Namespace if it is set. Otherwise it is the namespace
// in State.App, or "default".
func (a *applier) namespace() string {
	namespace, _, ok := strings.Cut(a.App, "/")
	if !ok {
		namespace = "default"
	}
	return cmp.Or(a.Namespace, namespace)
}

// beside returns the full name of the application app in the namespace of owner. For the app "bank", the result is
// "bank" in the default namespace, and "prod/bank" in the namespace prod. If app already contains a namespace, beside
// returns app unchanged.
func beside(owner, app string) string {
	if namespace, _, ok := strings.Cut(owner, "/"); ok && !strings.Contains(app, "/") {
		return namespace + "/" + app
	}
	return app
}

// ValidApp reports whether app can be the id of an application: 1 to 256 letters, digits, dots, dashes and
// underscores.
func ValidApp(app string) bool {
	if app == "" || len(app) > 256 {
		return false
	}
	for i := range len(app) {
		c := app[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func (a *applier) append(e *protos.HistoryEvent) { a.out.Append = append(a.out.Append, e) }

func (a *applier) schedule(action *protos.WorkflowAction, t *protos.ScheduleTaskAction) error {
	app, router, err := a.target(action)
	if err != nil {
		return err
	}
	if err = a.claim(action); err != nil {
		return err
	}
	if err = a.bounded("the name of an activity", t.GetName(), MaxName, true); err != nil {
		return err
	}
	if err = a.bounded("the id of a task execution", t.GetTaskExecutionId(), MaxID, false); err != nil {
		return err
	}
	scheduled := &protos.TaskScheduledEvent{Name: t.GetName(), Version: t.GetVersion(), Input: t.GetInput(),
		TaskExecutionId: t.GetTaskExecutionId(), ParentTraceContext: a.trace,
		HistoryPropagationScope: t.HistoryPropagationScope}
	e := event(action.GetId(), a.now, &protos.HistoryEvent{Router: router,
		EventType: &protos.HistoryEvent_TaskScheduled{TaskScheduled: scheduled}})
	a.append(e)
	a.out.Tasks = append(a.out.Tasks, Task{ID: action.GetId(), App: app, Event: e})
	return nil
}

// never returns 31 December 9999. A timer for this time or a later one never fires. SDKs create such a timer for a wait
// without a timeout.
func never() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }

func (a *applier) timer(action *protos.WorkflowAction, t *protos.CreateTimerAction) error {
	if err := a.claim(action); err != nil {
		return err
	}
	if t.GetFireAt().CheckValid() != nil {
		return invalid(a.ID, "timer %d has no valid time", action.GetId())
	}
	created := &protos.TimerCreatedEvent{FireAt: t.GetFireAt(), Name: t.Name}
	guards, id := "", ""
	switch o := t.GetOrigin().(type) {
	case *protos.CreateTimerAction_CreateTimer:
		created.Origin = &protos.TimerCreatedEvent_CreateTimer{CreateTimer: o.CreateTimer}
	case *protos.CreateTimerAction_ExternalEvent:
		created.Origin = &protos.TimerCreatedEvent_ExternalEvent{ExternalEvent: o.ExternalEvent}
		guards = o.ExternalEvent.GetName()
	case *protos.CreateTimerAction_ActivityRetry:
		created.Origin = &protos.TimerCreatedEvent_ActivityRetry{ActivityRetry: o.ActivityRetry}
		id = o.ActivityRetry.GetTaskExecutionId()
	case *protos.CreateTimerAction_ChildWorkflowRetry:
		created.Origin = &protos.TimerCreatedEvent_ChildWorkflowRetry{ChildWorkflowRetry: o.ChildWorkflowRetry}
		id = o.ChildWorkflowRetry.GetInstanceId()
	}
	for _, name := range []string{t.GetName(), guards} {
		if err := a.bounded("the name of a timer", name, MaxName, false); err != nil {
			return err
		}
	}
	if err := a.bounded("the origin of a timer", id, MaxID, false); err != nil {
		return err
	}
	a.append(event(action.GetId(), a.now, &protos.HistoryEvent{Router: &protos.TaskRouter{SourceAppID: a.App},
		EventType: &protos.HistoryEvent_TimerCreated{TimerCreated: created}}))
	if t, ok := fires(action.GetId(), created); ok {
		a.out.Timers = append(a.out.Timers, t)
	}
	return nil
}

// fires returns the timer of an event TimerCreated. ok is false if the timer never fires.
func fires(id int32, created *protos.TimerCreatedEvent) (t Timer, ok bool) {
	at := created.GetFireAt().AsTime()
	fired := &protos.TimerFiredEvent{TimerId: id, FireAt: created.GetFireAt()}
	return Timer{ID: id, FireAt: at, Event: &protos.HistoryEvent{EventId: -1,
		EventType: &protos.HistoryEvent_TimerFired{TimerFired: fired}}}, at.Before(never())
}

// Derive returns a UUID that depends only on its arguments, so that a turn has the same outcome if it is computed
// again.
func Derive(parent, purpose string) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("quorate:workflow:"+parent+"/"+purpose)).String()
}

func (a *applier) execution() string {
	return a.start.GetWorkflowInstance().GetExecutionId().GetValue()
}

// key returns the key of a message that this execution of the instance sends. purpose and id distinguish the messages
// of one execution. The keys of different instances always differ, because App and ID contain no NUL byte.
func (a *applier) key(purpose string, id int32) string {
	return a.App + "\x00" + a.ID + "\x00" + a.execution() + "\x00" + purpose + strconv.Itoa(int(id))
}

// ChildID returns the id of a child for which the workflow sets no id. action is the id of the action that starts the
// child.
func ChildID(parent string, action int32) string { return fmt.Sprintf("%s:%04x", parent, action) }

func (a *applier) child(action *protos.WorkflowAction, c *protos.CreateChildWorkflowAction) error {
	app, router, err := a.target(action)
	if err != nil {
		return err
	}
	if err = a.claim(action); err != nil {
		return err
	}
	id := c.GetInstanceId()
	if id == "" {
		id = ChildID(a.ID, action.GetId())
	}
	if err = a.bounded("the id of a child workflow", id, MaxID, true); err != nil {
		return err
	}
	if err = a.bounded("the name of a child workflow", c.GetName(), MaxName, true); err != nil {
		return err
	}
	if err = a.bounded("the version of a child workflow", c.GetVersion().GetValue(), MaxName, false); err != nil {
		return err
	}
	created := &protos.ChildWorkflowInstanceCreatedEvent{InstanceId: id, Name: c.GetName(), Version: c.GetVersion(),
		Input: c.GetInput(), ParentTraceContext: a.trace, HistoryPropagationScope: c.HistoryPropagationScope,
		RetryParentInstanceInfo: c.GetRetryParentInstanceInfo()}
	a.append(event(action.GetId(), a.now, &protos.HistoryEvent{Router: router,
		EventType: &protos.HistoryEvent_ChildWorkflowInstanceCreated{ChildWorkflowInstanceCreated: created}}))
	a.out.Messages = append(a.out.Messages, a.begin(action.GetId(), app, router, created))
	return nil
}

// begin returns the message that starts a child. id is the id of the action, and app is the application that owns the
// child.
func (a *applier) begin(id int32, app string, router *protos.TaskRouter,
	c *protos.ChildWorkflowInstanceCreatedEvent) Message {
	parent := &protos.ParentInstanceInfo{TaskScheduledId: id, Name: wrapperspb.String(a.start.GetName()),
		Version: a.start.GetVersion(), AppID: proto.String(a.App), WorkflowInstance: &protos.WorkflowInstance{
			InstanceId: a.ID, ExecutionId: wrapperspb.String(a.execution())}}
	parent.AppNamespace = proto.String(a.namespace())
	key, execution := a.newborn(id)
	start := &protos.ExecutionStartedEvent{Name: c.GetName(), Version: c.GetVersion(), Input: c.GetInput(),
		ParentInstance: parent, ParentTraceContext: c.GetParentTraceContext(),
		WorkflowInstance: &protos.WorkflowInstance{InstanceId: c.GetInstanceId(),
			ExecutionId: wrapperspb.String(execution)}}
	return Message{Key: key, App: app, Instance: c.GetInstanceId(), Event: event(-1, a.now, &protos.HistoryEvent{
		Router: router, EventType: &protos.HistoryEvent_ExecutionStarted{ExecutionStarted: a.inherit(start)}})}
}

// newborn returns the key of the message that starts a child, and the execution id of the new child. The parameter id
// is the id of the action that starts the child.
func (a *applier) newborn(id int32) (key, execution string) {
	key = a.key("child", id)
	return key, Derive(key, "execution")
}

func (a *applier) detached(action *protos.WorkflowAction, c *protos.CreateDetachedWorkflowAction) error {
	app, router, err := a.target(action)
	if err != nil {
		return err
	}
	if err = a.claim(action); err != nil {
		return err
	}
	if err = a.bounded("the id of a detached workflow", c.GetInstanceId(), MaxID, true); err != nil {
		return err
	}
	if err = a.bounded("the name of a detached workflow", c.GetName(), MaxName, true); err != nil {
		return err
	}
	if err = a.bounded("the version of a detached workflow", c.GetVersion().GetValue(), MaxName, false); err != nil {
		return err
	}
	if err = a.bounded("an execution id", c.GetExecutionId().GetValue(), MaxID, false); err != nil {
		return err
	}
	if len(c.GetTags()) > MaxTags {
		return invalid(a.ID, "a detached workflow has more than %d tags", MaxTags)
	}
	if c.ScheduledStartTimestamp != nil && c.GetScheduledStartTimestamp().CheckValid() != nil {
		return invalid(a.ID, "the start time of detached workflow '%s' is not valid", c.GetInstanceId())
	}
	key, execution := a.key("detached", action.GetId()), c.GetExecutionId().GetValue()
	trace := Bounded(c.GetParentTraceContext())
	if execution == "" {
		execution = Derive(key, "execution")
	}
	if trace == nil {
		trace = a.trace
	}
	created := &protos.DetachedWorkflowInstanceCreatedEvent{InstanceId: c.GetInstanceId()}
	a.append(event(action.GetId(), a.now, &protos.HistoryEvent{Router: router,
		EventType: &protos.HistoryEvent_DetachedWorkflowInstanceCreated{DetachedWorkflowInstanceCreated: created}}))
	// the new instance has no parent, so its router must not name a source
	var own *protos.TaskRouter
	if app != a.App {
		own = &protos.TaskRouter{TargetAppID: router.TargetAppID, TargetAppNamespace: router.TargetAppNamespace}
	}
	start := &protos.ExecutionStartedEvent{Name: c.GetName(), Version: c.GetVersion(), Input: c.GetInput(),
		ScheduledStartTimestamp: c.GetScheduledStartTimestamp(), Tags: c.GetTags(), ParentTraceContext: trace,
		WorkflowInstance: &protos.WorkflowInstance{InstanceId: c.GetInstanceId(),
			ExecutionId: wrapperspb.String(execution)}}
	a.out.Messages = append(a.out.Messages, Message{Key: key, App: app, Instance: c.GetInstanceId(),
		Event: event(-1, a.now, &protos.HistoryEvent{Router: own,
			EventType: &protos.HistoryEvent_ExecutionStarted{ExecutionStarted: a.inherit(start)}})})
	return nil
}

func (a *applier) send(action *protos.WorkflowAction, s *protos.SendEventAction) error {
	router, err := a.home(action, "sends an event to a workflow")
	if err != nil {
		return err
	}
	if err = a.claim(action); err != nil {
		return err
	}
	to := s.GetInstance().GetInstanceId()
	if err = a.bounded("the id of the target of an event", to, MaxID, true); err != nil {
		return err
	}
	if err = a.bounded("the name of an event", s.GetName(), MaxName, true); err != nil {
		return err
	}
	a.append(event(action.GetId(), a.now, &protos.HistoryEvent{Router: router,
		EventType: &protos.HistoryEvent_EventSent{EventSent: &protos.EventSentEvent{InstanceId: to, Name: s.GetName(),
			Input: s.GetData()}}}))
	a.out.Messages = append(a.out.Messages, Message{Key: a.key("event", action.GetId()), App: a.App, Instance: to,
		Event: event(-1, a.now, &protos.HistoryEvent{Router: router, EventType: &protos.HistoryEvent_EventRaised{
			EventRaised: &protos.EventRaisedEvent{Name: s.GetName(), Input: s.GetData()}}})})
	return nil
}

func (a *applier) terminate(action *protos.WorkflowAction, t *protos.TerminateWorkflowAction) error {
	router, err := a.home(action, "terminates a workflow")
	if err != nil {
		return err
	}
	if err = a.claim(action); err != nil {
		return err
	}
	if err = a.bounded("the id of a workflow to terminate", t.GetInstanceId(), MaxID, true); err != nil {
		return err
	}
	a.out.Messages = append(a.out.Messages, Message{Key: a.key("terminate", action.GetId()), App: a.App,
		Instance: t.GetInstanceId(), Event: a.end(router, t.GetReason(), t.GetRecurse())})
	return nil
}

func (a *applier) end(router *protos.TaskRouter, reason *wrapperspb.StringValue, recurse bool) *protos.HistoryEvent {
	return event(-1, a.now, &protos.HistoryEvent{Router: router, EventType: &protos.HistoryEvent_ExecutionTerminated{
		ExecutionTerminated: &protos.ExecutionTerminatedEvent{Input: reason, Recurse: recurse}}})
}
