package workflows

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	apiworkflows "github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// Timeouts of a change. The handler of the admin API ends a request after 8 s.
const (
	settleTime    = 2 * time.Second // for a worker to take a change
	terminateTime = 6 * time.Second // the engine ends an instance after 5 s without the answer of a worker
	purgeTime     = 6 * time.Second
)

// home returns the application that a new instance will belong to. It returns fault.NotFound if the cluster knows no
// such application, because the id is then probably misspelt and the instance would wait forever. It returns
// fault.Conflict if applications of several namespaces match.
func (a *Admin) home(ctx context.Context, op, id, namespace string) (owned, error) {
	if id == "" {
		return owned{}, fault.New(fault.Invalid, op, "no application is named")
	}
	fit, all, err := a.owners(ctx, id, namespace)
	if err != nil {
		return owned{}, err
	}
	instances, err := a.Apps(ctx)
	if err != nil {
		return owned{}, err
	}
	var ids []string
	for _, o := range all {
		ids = append(ids, o.ID)
	}
	for i := range instances {
		app := api.App{ID: instances[i].App, Namespace: instances[i].Namespace}
		ids = append(ids, app.ID)
		o := owned{App: app, owner: apiworkflows.Owner(app)}
		known := app.ID != id || namespace != "" && namespace != cmp.Or(app.Namespace, "default")
		for _, f := range fit {
			known = known || f.owner == o.owner
		}
		if !known {
			fit = append(fit, o)
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		return owned{}, meant(&fault.Error{Code: fault.NotFound, Op: op, Key: id, Msg: "no application " +
			api.Shorten(id) + " is known in this cluster", Hint: "apps lists them"}, id, ids)
	}
	return owned{}, &fault.Error{Code: fault.Conflict, Op: op, Key: id, Msg: "applications " + api.Shorten(id) +
		" of several namespaces are known", Hint: "name one with --namespace"}
}

// newID returns fault.Invalid if id cannot be the id of a new instance.
func newID(op, id string) error {
	if !apiworkflows.ValidPublicID(id) {
		return &fault.Error{Code: fault.Invalid, Op: op, Key: id, Msg: api.ShortenName(id) +
			" cannot be the id of a new workflow instance", Hint: "give at most " +
			strconv.Itoa(apiworkflows.MaxPublicID) + " letters, digits, - and _"}
	}
	return nil
}

// checkName returns fault.Invalid if name cannot be the name of a workflow or an event. what is "workflow" or "event".
func checkName(op, what, name string) error {
	switch {
	case name == "":
		return fault.New(fault.Invalid, op, "the name of the "+what+" is missing")
	case len(name) > apiworkflows.MaxName, !utf8.ValidString(name):
		return fault.New(fault.Invalid, op, "the name of the "+what+" is not text of at most "+
			strconv.Itoa(apiworkflows.MaxName)+" bytes")
	}
	return nil
}

// value converts the data of an operator to a payload for the engine. It returns fault.Invalid if the data is not
// JSON, because SDKs decode payloads as JSON.
func value(op string, text *string) (*wrapperspb.StringValue, error) {
	if text == nil {
		return nil, nil
	}
	if !json.Valid([]byte(*text)) {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the data is not JSON",
			Hint: "put text into double quotes"}
	}
	return wrapperspb.String(*text), nil
}

// changed describes an instance after a change. If the status of the instance cannot be read, the result has no status.
// This is not an error, because the change itself has succeeded.
func (a *Admin) changed(ctx context.Context, o *owned, id, note string) schema.WorkflowChanged {
	c := schema.WorkflowChanged{WorkflowRef: schema.WorkflowRef{App: o.ID, Namespace: o.Namespace, ID: id}, Note: note}
	if s, err := a.Engine.State(ctx, o.owner, id, false); err == nil {
		c.Status = statusText(s.GetWorkflowStatus())
	}
	return c
}

// waitsForWorker returns a note if no worker of the application is connected, because the instance then waits for one.
// Otherwise it returns "".
func (o *owned) waitsForWorker() string {
	if o.workers > 0 {
		return ""
	}
	return "no worker of " + o.ID + " is connected; the instance waits until one connects"
}

// StartWorkflow implements admin.Workflows.
func (a *Admin) StartWorkflow(ctx context.Context, r schema.WorkflowStart) (c schema.WorkflowChanged, err error) {
	const op = "workflows.Start"
	o, err := a.home(ctx, op, r.App, r.Namespace)
	if err != nil {
		return c, err
	}
	id := cmp.Or(r.ID, uuid.NewString())
	if err := newID(op, id); err != nil {
		return c, err
	}
	if err := checkName(op, "workflow", r.Name); err != nil {
		return c, err
	}
	in := &protos.CreateInstanceRequest{InstanceId: id, Name: r.Name}
	if in.Input, err = value(op, r.Input); err != nil {
		return c, err
	}
	if !r.At.IsZero() {
		in.ScheduledStartTimestamp = timestamppb.New(r.At)
	}
	note, misspelt := a.nameNote(ctx, []owned{o}, r.Name)
	if !misspelt {
		note = ""
	}
	if err := a.Engine.Start(ctx, o.owner, in); err != nil {
		return c, err
	}
	a.Logger.Info("a workflow was started by an operator", "app_id", o.ID, "instance", id, "workflow", r.Name)
	return a.changed(ctx, &o, id, cmp.Or(o.waitsForWorker(), note)), nil
}

// ChangeWorkflow implements admin.Workflows.
func (a *Admin) ChangeWorkflow(ctx context.Context, r schema.WorkflowChange) (c schema.WorkflowChanged, err error) {
	const op = "workflows.Change"
	o, s, err := a.instance(ctx, op, &r.WorkflowRef, false)
	if err != nil {
		return c, err
	}
	status := s.GetWorkflowStatus()
	if workflow.Terminal(status) {
		return c, &fault.Error{Code: fault.Conflict, Op: op, Key: r.ID, Msg: "workflow instance " + r.ID +
			" has ended with the status " + statusText(status), Hint: "workflows rerun runs a part of it again"}
	}
	data, err := value(op, r.Data)
	if err != nil {
		return c, err
	}
	until, patience := workflow.Until(-1), settleTime
	switch r.Action {
	case schema.WorkflowRaise:
		err = a.raise(ctx, op, &o, &r, data)
	case schema.WorkflowPause:
		if until = workflow.Suspended; status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED {
			return c, &fault.Error{Code: fault.Conflict, Op: op, Key: r.ID, Msg: "workflow instance " + r.ID +
				" is paused already"}
		}
		err = a.Engine.Suspend(ctx, o.owner, &protos.SuspendRequest{InstanceId: r.ID, Reason: reason(r.Reason)})
	case schema.WorkflowResume:
		if until = workflow.Resumed; status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING ||
			status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_PENDING {
			return c, &fault.Error{Code: fault.Conflict, Op: op, Key: r.ID, Msg: "workflow instance " + r.ID +
				" is not paused: its status is " + statusText(status)}
		}
		err = a.Engine.Resume(ctx, o.owner, &protos.ResumeRequest{InstanceId: r.ID, Reason: reason(r.Reason)})
	case schema.WorkflowTerminate:
		until, patience = workflow.Completed, terminateTime
		err = a.Engine.Terminate(ctx, o.owner, &protos.TerminateRequest{InstanceId: r.ID, Output: data,
			Recursive: !r.KeepChildren})
	default:
		err = fault.New(fault.Invalid, op, api.ShortenName(r.Action)+" is no change of a workflow")
	}
	if err != nil {
		return c, stalledHint(err, status)
	}
	a.Logger.Info("a workflow was changed by an operator", "app_id", o.ID, "instance", r.ID, "action", r.Action,
		"event", r.Event)
	switch {
	case until < 0:
		return a.changed(ctx, &o, r.ID, o.waitsForWorker()), nil
	case o.workers == 0 && r.Action != schema.WorkflowTerminate: // to terminate needs no worker
		return a.changed(ctx, &o, r.ID, "the change is stored; it takes effect when a worker of "+o.ID+" connects"), nil
	}
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	note := ""
	if _, err := a.Engine.Wait(limit, o.owner, r.ID, until, false); err != nil {
		note = cmp.Or(o.waitsForWorker(), "the change is stored; a worker has not taken it yet")
	}
	return a.changed(ctx, &o, r.ID, note), nil
}

func reason(text string) *wrapperspb.StringValue {
	if text == "" {
		return nil
	}
	return wrapperspb.String(text)
}

// stalledHint replaces err by an error with a hint if a stalled instance has refused a change. It returns other errors
// unchanged.
func stalledHint(err error, status protos.OrchestrationStatus) error {
	if status != protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED || !fault.Is(err, fault.Invalid) {
		return err
	}
	return &fault.Error{Code: fault.Invalid, Op: "workflows.Change", Msg: "the instance is stalled and refuses changes",
		Hint: "connect a worker that has the patch or version which workflows show names, or remove the instance " +
			"with workflows purge --force"}
}

// raise sends an event to an instance. If the instance waits only for events with other names, raise returns
// fault.Conflict, because the name is probably misspelt and an event cannot be taken back. If r.Early is set, raise
// sends the event anyway.
func (a *Admin) raise(ctx context.Context, op string, o *owned, r *schema.WorkflowChange,
	data *wrapperspb.StringValue) error {
	if err := checkName(op, "event", r.Event); err != nil {
		return err
	}
	if !r.Early {
		waits, err := a.waits(ctx, o.owner, r.ID)
		if err != nil {
			return err
		}
		fits := len(waits) == 0
		for _, name := range waits {
			fits = fits || strings.EqualFold(name, r.Event)
		}
		if !fits {
			return meant(&fault.Error{Code: fault.Conflict, Op: op, Key: r.Event, Msg: "workflow instance " + r.ID +
				" waits for " + api.Shorten(strings.Join(waits, ", ")) + ", not for the event " +
				api.ShortenName(r.Event), Hint: "add --early to store the event until it does"}, r.Event, waits)
		}
	}
	return a.Engine.Raise(ctx, o.owner, &protos.RaiseEventRequest{InstanceId: r.ID, Name: r.Event, Input: data})
}

// waits returns the names of the events that an instance waits for. The list may be incomplete, because the workers of
// some SDKs do not report every wait.
func (a *Admin) waits(ctx context.Context, owner, id string) (names []string, err error) {
	picture := newSteps(false)
	_, err = a.read(ctx, owner, id, 0, func(_ int, e *protos.HistoryEvent) bool {
		picture.add(e)
		return true
	})
	for i := range picture.list {
		if one := &picture.list[i]; one.Kind == schema.StepWait && one.Outcome == "" {
			names = append(names, one.Name)
		}
	}
	return names, err
}

// PurgeWorkflows implements admin.Workflows.
func (a *Admin) PurgeWorkflows(ctx context.Context, r schema.WorkflowPurge) (p schema.WorkflowsPurged, err error) {
	const op = "workflows.Purge"
	if r.ID != "" {
		return a.purgeOne(ctx, op, &r)
	}
	o, err := a.one(ctx, op, r.App, r.Namespace)
	if err != nil {
		return p, err
	}
	if r.Force {
		return p, fault.New(fault.Invalid, op, "force needs the id of an instance")
	}
	f, err := filterOf(op, &schema.WorkflowSelection{Name: r.Name, Prefix: r.Prefix, Statuses: r.Statuses,
		Before: r.Before})
	if err != nil {
		return p, err
	}
	for _, s := range f.Statuses {
		if !workflow.Terminal(s) {
			return p, &fault.Error{Code: fault.Invalid, Op: op, Msg: "instances with the status " + statusText(s) +
				" have not ended, so a selection cannot purge them", Hint: "terminate them first"}
		}
	}
	limit, cancel := context.WithTimeout(ctx, purgeTime)
	defer cancel()
	removed, complete, err := a.Engine.PurgeMatching(limit, o.owner, f, true)
	a.Logger.Info("workflows were purged by an operator", "app_id", o.ID, "instances", removed)
	if limit.Err() != nil && ctx.Err() == nil && removed > 0 {
		complete, err = false, nil // the caller repeats the request
	}
	return schema.WorkflowsPurged{Removed: removed, More: !complete}, withRemoved(err, removed)
}

// withRemoved adds the number of removed instances to the message of err, because an error answer has no field for this
// number.
func withRemoved(err error, removed int) error {
	e, ok := fault.As(err)
	if !ok || removed == 0 {
		return err
	}
	out := *e
	out.Msg += " (instances that were removed: " + strconv.Itoa(removed) + ")"
	return &out
}

// purgeOne removes one instance and its children.
func (a *Admin) purgeOne(ctx context.Context, op string, r *schema.WorkflowPurge) (p schema.WorkflowsPurged,
	err error) {
	o, s, err := a.instance(ctx, op, &r.WorkflowRef, false)
	if err != nil {
		return p, err
	}
	if status := s.GetWorkflowStatus(); !r.Force && !workflow.Terminal(status) {
		return p, &fault.Error{Code: fault.Conflict, Op: op, Key: r.ID, Msg: "workflow instance " + r.ID +
			" has not ended: its status is " + statusText(status),
			Hint: "terminate it first, or add --force to remove it while it runs"}
	}
	p.Removed, err = a.Engine.Purge(ctx, o.owner, r.ID, true, r.Force)
	if p.Removed > 0 {
		a.Logger.Info("workflows were purged by an operator", "app_id", o.ID, "instance", r.ID, "instances", p.Removed)
	}
	return p, withRemoved(err, p.Removed)
}

// RerunWorkflow implements admin.Workflows.
func (a *Admin) RerunWorkflow(ctx context.Context, r schema.WorkflowRerun) (c schema.WorkflowChanged, err error) {
	const op = "workflows.Rerun"
	o, s, err := a.instance(ctx, op, &r.WorkflowRef, false)
	if err != nil {
		return c, err
	}
	if status := s.GetWorkflowStatus(); !workflow.Terminal(status) {
		return c, &fault.Error{Code: fault.Conflict, Op: op, Key: r.ID, Msg: "workflow instance " + r.ID +
			" has not ended: its status is " + statusText(status),
			Hint: "only instances that have ended can be run again"}
	}
	id := cmp.Or(r.NewID, uuid.NewString())
	if err := newID(op, id); err != nil {
		return c, err
	}
	in := &protos.RerunWorkflowFromEventRequest{SourceInstanceID: r.ID, EventID: r.Event, NewInstanceID: &id,
		OverwriteInput: r.Input != nil}
	if in.Input, err = value(op, r.Input); err != nil {
		return c, err
	}
	if _, err := a.Engine.Rerun(ctx, o.owner, in); err != nil {
		if e, ok := fault.As(err); ok && e.Hint == "" && (e.Code == fault.NotFound || e.Code == fault.Invalid) {
			return c, &fault.Error{Code: e.Code, Op: op, Key: r.ID, Msg: e.Msg,
				Hint: "workflows history shows the ids; events of type TaskScheduled, TimerCreated and " +
					"ChildWorkflowInstanceCreated can be run again"}
		}
		return c, err
	}
	a.Logger.Info("a workflow was run again by an operator", "app_id", o.ID, "instance", r.ID, "event", r.Event,
		"new_instance", id)
	return a.changed(ctx, &o, id, o.waitsForWorker()), nil
}
