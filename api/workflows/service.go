package workflows

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/workflow"
)

// Limits of requests. A start over Dapr's API accepts only ids of up to MaxPublicID letters, digits, - and _. All other
// methods accept any valid UTF-8 without zero bytes as an id, up to MaxID bytes.
const (
	MaxPublicID = 64   // characters of the id in a start over Dapr's API
	MaxID       = 1024 // bytes
	MaxName     = 1024 // bytes of the name of a workflow or an event
	MaxTags     = 100
	MaxStreams  = 256  // streams of work of one application on a node
	MaxPage     = 1000 // ids in an answer
	// MaxHistory is the maximum size of the history in one answer, in bytes.
	MaxHistory = 64 << 20
)

// Options configure a Service. App and Engine are required.
type Options struct {
	App    api.App
	Engine workflow.Engine
	// Worker returns the bounds and the retention of the workers that connect. nil = none.
	Worker func() workflow.Worker
	Logger *slog.Logger // nil = nothing is logged
}

// Service serves the workflows of one application. It is safe for concurrent use. All errors are *api.Error.
type Service struct {
	o     Options
	owner string        // owner of the instances, in calls of the engine
	whole chan struct{} // capacity 1; has an element while a call reads a whole history

	mu      sync.Mutex
	streams int
}

// New returns the service of an application.
func New(o Options) *Service {
	return &Service{o: o, owner: Owner(o.App), whole: make(chan struct{}, 1)}
}

// Owner returns the name of an application in calls of the engine. In the default namespace it is the app id, for
// example "orders". In other namespaces it has the form "namespace/orders".
func Owner(app api.App) string {
	if app.Namespace == "" || app.Namespace == "default" {
		return app.ID
	}
	return app.Namespace + "/" + app.ID
}

// Workers returns the number of streams on which workers of the application receive work from this node.
func (s *Service) Workers() int { return s.o.Engine.Workers(s.owner) }

// target returns the owner of the instances that a request refers to. app is the application that the request names, or
// "" for the application itself. As in Dapr, an application cannot use the instances of another one, so target returns
// an error if app is another application.
func (s *Service) target(app string) (string, error) {
	if app == "" || app == s.o.App.ID {
		return s.owner, nil
	}
	return "", denied("application " + s.o.App.ID + " may not use the workflows of application " + api.Shorten(app) +
		": call the sidecar of that application, or start a child workflow there")
}

// routed does the same as target, but takes the application from the router of a request.
func (s *Service) routed(r *protos.TaskRouter) (string, error) {
	if ns := r.GetTargetAppNamespace(); ns != "" && ns != cmp.Or(s.o.App.Namespace, "default") {
		return "", denied("application " + s.o.App.ID + " may not use the workflows of namespace " + api.Shorten(ns))
	}
	return s.target(r.GetTargetAppID())
}

func denied(text string) *api.Error {
	return &api.Error{Kind: api.Denied, Code: api.CodePermissionDenied, Message: text,
		Details: api.Details{Reason: api.ReasonDenied}}
}

// StartRequest starts an instance.
type StartRequest struct {
	ID       string // "" = a UUID
	Workflow string
	App      string                  // application in the request; "" = the application itself
	Input    *wrapperspb.StringValue // nil = none
	At       string                  // RFC 3339; "" = at once
	Trace    string                  // the traceparent of the caller; "" = none
}

// Start stores a new instance and returns its id. It does not wait for the first turn.
func (s *Service) Start(ctx context.Context, r *StartRequest) (string, error) {
	if r.ID == "" {
		r.ID = uuid.NewString()
	}
	switch {
	case r.Workflow == "":
		return "", bad(api.CodeWorkflowName, "workflow name is not configured")
	case len(r.ID) > MaxPublicID:
		return "", bad(api.CodeInstanceIDTooLong, "workflow instance ID exceeds the max length of 64 characters")
	case !ValidPublicID(r.ID):
		return "", bad(api.CodeInstanceIDInvalid, "workflow instance ID '"+api.Shorten(r.ID)+
			"' is invalid: only alphanumeric and underscore characters are allowed")
	}
	if err := checkName("the name of the workflow", r.Workflow); err != nil {
		return "", err
	}
	if err := checkText("the input", r.Input); err != nil {
		return "", err
	}
	owner, err := s.target(r.App)
	if err != nil {
		return "", err
	}
	in := &protos.CreateInstanceRequest{InstanceId: r.ID, Name: r.Workflow, Input: r.Input,
		ParentTraceContext: Trace(r.Trace)}
	if r.At != "" {
		at, err := time.Parse(time.RFC3339, r.At)
		if err != nil {
			return "", &api.Error{Kind: api.Failed, Code: api.CodeStartWorkflow, Message: startFailed(r.Workflow) +
				"the start time is not in the form of RFC 3339, such as 2026-01-02T15:04:05Z"}
		}
		in.ScheduledStartTimestamp = timestamppb.New(at)
	}
	if err := s.o.Engine.Start(ctx, owner, in); err != nil {
		return "", failed(api.CodeStartWorkflow, startFailed(r.Workflow), err)
	}
	return r.ID, nil
}

func startFailed(name string) string { return "error starting workflow '" + api.Shorten(name) + "': " }

// ValidPublicID reports whether a start over Dapr's API may use id. A valid id has at most MaxPublicID characters,
// which are letters, digits, - or _.
func ValidPublicID(id string) bool {
	return len(id) <= MaxPublicID && strings.IndexFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-'
	}) < 0
}

// Trace converts a traceparent to a trace context. It returns nil if traceparent does not follow W3C Trace Context or
// is not valid UTF-8. The check is needed because an HTTP header may contain any bytes, but the engine stores only
// UTF-8.
func Trace(traceparent string) *protos.TraceContext {
	if !isTraceparent(traceparent) {
		return nil
	}
	//lint:ignore SA1019 older workers read it
	return &protos.TraceContext{TraceParent: traceparent, SpanID: strings.Split(traceparent, "-")[2]}
}

func isTraceparent(text string) bool {
	const length = 55 // length in version 00; later versions may add fields
	if api.TraceID(text) == "" || !utf8.ValidString(text) ||
		len(text) > length && (text[:2] == "00" || text[length] != '-') {
		return false
	}
	parent := text[36:52]
	return strings.Trim(text[:2]+parent+text[53:length], "0123456789abcdef") == "" && strings.Trim(parent, "0") != ""
}

func checkName(what, name string) error {
	switch {
	case len(name) > MaxName:
		return api.Exceeded(what+" is too long, in bytes", len(name), MaxName)
	case !utf8.ValidString(name):
		return api.MalformedRequest(what + " is not valid UTF-8")
	}
	return nil
}

// checkText returns an error if the text of v is not valid UTF-8. It is for payloads that no protobuf decoder has
// checked.
func checkText(what string, v *wrapperspb.StringValue) error {
	if !utf8.ValidString(v.GetValue()) {
		return api.MalformedRequest(what + " is not valid UTF-8; encode binary data, for example as base64")
	}
	return nil
}

// checkID checks the id of an instance that a request names.
func checkID(id string) error {
	switch {
	case id == "":
		return bad(api.CodeInstanceIDMissing, "no instance ID was provided")
	case len(id) > MaxID:
		return api.Exceeded("the instance ID is too long, in bytes", len(id), MaxID)
	case !utf8.ValidString(id):
		return api.MalformedRequest("the instance ID is not valid UTF-8")
	case strings.IndexByte(id, 0) >= 0:
		return api.MalformedRequest("the instance ID has a zero byte")
	}
	return nil
}

// at checks the id of an instance, and returns the owner of the instance. Like target, it returns an error if app is
// another application.
func (s *Service) at(id, app string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return s.target(app)
}

// to does the same as at, but takes the application from the router of a request.
func (s *Service) to(id string, r *protos.TaskRouter) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return s.routed(r)
}

// Get returns the state of an instance with its payloads. If the instance does not exist, the error is of kind
// NotFound.
func (s *Service) Get(ctx context.Context, id, app string) (*protos.WorkflowState, error) {
	owner, err := s.at(id, app)
	if err != nil {
		return nil, err
	}
	state, err := s.o.Engine.State(ctx, owner, id, true)
	if err != nil {
		return nil, named(api.CodeGetWorkflow, "error getting workflow info on ID "+api.Shorten(id)+": ", id, err)
	}
	return state, nil
}

// Terminate ends an instance and its children. It returns when the request is stored.
func (s *Service) Terminate(ctx context.Context, id, app string) error {
	owner, err := s.at(id, app)
	if err != nil {
		return err
	}
	err = s.o.Engine.Terminate(ctx, owner, &protos.TerminateRequest{InstanceId: id, Recursive: true})
	return named(api.CodeTerminateWorkflow, "error terminating workflow '"+api.Shorten(id)+"': ", id, err)
}

// Pause suspends an instance. It returns when the request is stored.
func (s *Service) Pause(ctx context.Context, id, app string) error {
	owner, err := s.at(id, app)
	if err != nil {
		return err
	}
	err = s.o.Engine.Suspend(ctx, owner, &protos.SuspendRequest{InstanceId: id})
	return failed(api.CodePauseWorkflow, "error pausing workflow "+api.Shorten(id)+": ", err)
}

// Resume lets a suspended instance go on. It returns when the request is stored.
func (s *Service) Resume(ctx context.Context, id, app string) error {
	owner, err := s.at(id, app)
	if err != nil {
		return err
	}
	err = s.o.Engine.Resume(ctx, owner, &protos.ResumeRequest{InstanceId: id})
	return failed(api.CodeResumeWorkflow, "error resuming workflow "+api.Shorten(id)+": ", err)
}

// Purge removes a terminal instance and its children.
func (s *Service) Purge(ctx context.Context, id, app string) error {
	owner, err := s.at(id, app)
	if err != nil {
		return err
	}
	_, err = s.o.Engine.Purge(ctx, owner, id, true, false)
	return named(api.CodePurgeWorkflow, "error purging workflow '"+api.Shorten(id)+"': ", id, err)
}

// Raise stores an external event for an instance.
func (s *Service) Raise(ctx context.Context, id, app, event string, data *wrapperspb.StringValue) error {
	owner, err := s.at(id, app)
	if err != nil {
		return err
	}
	if event == "" {
		return bad(api.CodeWorkflowEventName, "missing workflow event name")
	}
	if err := checkName("the name of the event", event); err != nil {
		return err
	}
	if err := checkText("the data of the event", data); err != nil {
		return err
	}
	err = s.o.Engine.Raise(ctx, owner, &protos.RaiseEventRequest{InstanceId: id, Name: event, Input: data})
	return failed(api.CodeRaiseEvent, "error raising event on workflow '"+api.Shorten(id)+"': ", err)
}
