package workflows

import (
	"cmp"
	"context"
	"encoding/base64"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

// Limits of the answers for operators.
const (
	maxPage    = 1000     // instances or events of an answer
	maxPicture = 5000     // events of a history from which ShowWorkflow derives steps
	maxRead    = 64 << 20 // bytes of events that one request reads
	maxNames   = 1000     // instances that are searched for a name similar to a misspelt one
)

// Admin implements the part of the admin API about workflows. It ignores the access rules of applications, because
// users of the admin socket have all rights.
type Admin struct {
	Engine workflow.Engine
	// Apps lists the instances of the applications of the cluster.
	Apps   func(ctx context.Context) ([]schema.AppInstance, error)
	Logger *slog.Logger
}

// owned is an application that has workflows. The field owner is the name of the application in the workflow engine.
type owned struct {
	api.App
	owner   string
	workers int
}

// splitOwner returns the application that has the name owner in the workflow engine.
func splitOwner(owner string) api.App {
	if namespace, id, ok := strings.Cut(owner, "/"); ok {
		return api.App{ID: id, Namespace: namespace}
	}
	return api.App{ID: owner}
}

// owners lists the applications that have workflows. known has all of them, and fit has those with the given id and
// namespace. An empty id or namespace matches every application.
func (a *Admin) owners(ctx context.Context, id, namespace string) (fit, known []owned, err error) {
	list, err := a.Engine.Applications(ctx)
	for _, one := range list {
		o := owned{splitOwner(one.ID), one.ID, one.Workers}
		known = append(known, o)
		if (id == "" || id == o.ID) && (namespace == "" || namespace == cmp.Or(o.Namespace, "default")) {
			fit = append(fit, o)
		}
	}
	return fit, known, err
}

// one returns the application with workflows that has the given id and namespace. An empty namespace matches every
// namespace. The error is fault.Invalid if id is empty, fault.NotFound if no application matches, and fault.Conflict if
// several match.
func (a *Admin) one(ctx context.Context, op, id, namespace string) (owned, error) {
	fit, all, err := a.owners(ctx, id, namespace)
	switch {
	case err != nil:
		return owned{}, err
	case id == "":
		return owned{}, fault.New(fault.Invalid, op, "no application is named")
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return owned{}, &fault.Error{Code: fault.Conflict, Op: op, Key: id,
			Msg:  "applications " + api.Shorten(id) + " of several namespaces have workflows",
			Hint: "name one with --namespace"}
	}
	e := &fault.Error{Code: fault.NotFound, Op: op, Key: id, Msg: "application " + api.Shorten(id) +
		" has no workflows", Hint: "workflows list shows those of all applications"}
	var ids []string
	for _, o := range all {
		ids = append(ids, o.ID)
	}
	return owned{}, meant(e, id, ids)
}

// meant adds a suggestion to the message of e: the candidate most similar to word. If no candidate is similar, meant
// adds nothing. It returns e.
func meant(e *fault.Error, word string, candidates []string) *fault.Error {
	e.Msg += didYouMean(word, candidates)
	return e
}

// didYouMean returns a text that suggests the candidate most similar to word, or "" if none is similar.
func didYouMean(word string, candidates []string) string {
	if near := suggest.For(word, candidates); near != "" && near != word {
		return "; did you mean " + near + "?"
	}
	return ""
}

// noInstance returns the error for an instance that does not exist.
func (a *Admin) noInstance(ctx context.Context, op string, o *owned, id string) error {
	e := &fault.Error{Code: fault.NotFound, Op: op, Key: id, Msg: "application " + o.ID +
		" has no workflow instance " + api.ShortenName(id),
		Hint: "workflows list --app " + o.ID + " shows the instances"}
	var ids []string
	if page, _, err := a.Engine.List(ctx, o.owner, workflow.Filter{}, "", maxNames); err == nil {
		for n := range page {
			ids = append(ids, page[n].ID)
		}
	}
	return meant(e, id, ids)
}

// instance finds an instance. The payloads of the instance are set only if payloads is true.
func (a *Admin) instance(ctx context.Context, op string, r *schema.WorkflowRef, payloads bool) (o owned,
	s *protos.WorkflowState, err error) {
	if o, err = a.one(ctx, op, r.App, r.Namespace); err != nil {
		return o, nil, err
	}
	if r.ID == "" {
		return o, nil, fault.New(fault.Invalid, op, "no workflow instance is named")
	}
	s, err = a.Engine.State(ctx, o.owner, r.ID, payloads)
	if fault.Is(err, fault.NotFound) {
		err = a.noInstance(ctx, op, &o, r.ID)
	}
	return o, s, err
}

// statuses parses the names of workflow statuses. It returns fault.Invalid for an unknown name.
func statuses(op string, words []string) (list []protos.OrchestrationStatus, err error) {
	for _, w := range words {
		n, ok := protos.OrchestrationStatus_value["ORCHESTRATION_STATUS_"+strings.ToUpper(w)]
		if !ok {
			var names []string
			for _, name := range protos.OrchestrationStatus_name {
				names = append(names, strings.TrimPrefix(name, "ORCHESTRATION_STATUS_"))
			}
			slices.Sort(names)
			return nil, meant(&fault.Error{Code: fault.Invalid, Op: op, Key: w, Msg: api.ShortenName(w) +
				" is not a status of a workflow", Hint: "the statuses are " + strings.Join(names, ", ")}, w, names)
		}
		list = append(list, protos.OrchestrationStatus(n))
	}
	return list, nil
}

func filterOf(op string, r *schema.WorkflowSelection) (f workflow.Filter, err error) {
	f = workflow.Filter{Prefix: r.Prefix, Name: r.Name, CreatedFrom: r.Since, CreatedTo: r.Before}
	f.Statuses, err = statuses(op, r.Statuses)
	return f, err
}

// pageToken returns the token of the next page of a list. It consists of the application with which that page begins,
// and the page token of the engine.
func pageToken(owner, next string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(owner + "\x00" + next))
}

func readPageToken(op, token string) (owner, next string, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	owner, next, ok := strings.Cut(string(text), "\x00")
	if err != nil || !ok && token != "" {
		return "", "", fault.New(fault.Invalid, op, "the token of the page is not one that workflows list has printed")
	}
	return owner, next, nil
}

// ListWorkflows implements admin.Workflows.
func (a *Admin) ListWorkflows(ctx context.Context, r schema.WorkflowSelection) (page schema.WorkflowPage, err error) {
	const op = "workflows.List"
	page.Instances = []schema.WorkflowStatus{}
	f, err := filterOf(op, &r)
	if err != nil {
		return page, err
	}
	from, next, err := readPageToken(op, r.After)
	if err != nil {
		return page, err
	}
	fit, _, err := a.owners(ctx, r.App, r.Namespace)
	if err == nil && len(fit) == 0 && r.App != "" {
		_, err = a.one(ctx, op, r.App, r.Namespace) // its error suggests a similar name
	}
	if err != nil {
		return page, err
	}
	limit := min(max(r.Limit, 1), maxPage)
	for _, o := range fit {
		if o.owner < from {
			continue
		}
		if o.owner > from {
			next = ""
		}
		for {
			if len(page.Instances) == limit {
				page.Next = pageToken(o.owner, next)
				return page, nil
			}
			var list []workflow.Listed
			list, next, err = a.Engine.List(ctx, o.owner, f, next, limit-len(page.Instances))
			if err != nil {
				return page, err
			}
			for n := range list {
				page.Instances = append(page.Instances, listedOf(&o, &list[n]))
			}
			if next == "" {
				break
			}
		}
	}
	if len(page.Instances) == 0 && r.Name != "" {
		page.Note, _ = a.nameNote(ctx, fit, r.Name)
	}
	return page, nil
}

func listedOf(o *owned, l *workflow.Listed) schema.WorkflowStatus {
	return schema.WorkflowStatus{WorkflowRef: schema.WorkflowRef{App: o.ID, Namespace: o.Namespace, ID: l.ID},
		Name: short(l.Name), Status: statusText(l.Status), Created: l.Created.UTC(), Updated: l.Updated.UTC(),
		Parent: l.Parent}
}

// nameNote returns a note if no instance has the given workflow name, and "" otherwise. It checks only the first
// maxNames instances of each application. If a similar name exists, the note suggests that name, and misspelt is true.
func (a *Admin) nameNote(ctx context.Context, apps []owned, name string) (note string, misspelt bool) {
	var names []string
	for _, o := range apps {
		page, _, err := a.Engine.List(ctx, o.owner, workflow.Filter{}, "", maxNames)
		if err != nil {
			return "", false
		}
		for n := range page {
			if page[n].Name == name {
				return "", false
			}
			names = append(names, page[n].Name)
		}
	}
	near := didYouMean(name, names)
	return "no instance is of a workflow with the name " + api.ShortenName(name) + near, near != ""
}

// read calls add for each event in the history of an instance, from the position first. It stops when add returns
// false, or after more than maxRead bytes. isPartial is true if read stops before the end of the history.
func (a *Admin) read(ctx context.Context, owner, id string, first int,
	add func(position int, e *protos.HistoryEvent) bool) (isPartial bool, err error) {
	for size := 0; ; {
		events, more, err := a.Engine.History(ctx, owner, id, first, maxPage)
		if err != nil {
			return false, err
		}
		for _, e := range events {
			if size > maxRead || !add(first, e) {
				return true, nil
			}
			first, size = first+1, size+proto.Size(e)
		}
		if !more || len(events) == 0 {
			return false, nil
		}
	}
}

func momentOf(t *timestamppb.Timestamp) (at time.Time) {
	if t != nil {
		at = t.AsTime()
	}
	return at
}

func payloadOf(v *wrapperspb.StringValue) *string {
	if v == nil {
		return nil
	}
	shown, _ := cut(v.GetValue())
	return &shown
}

// ShowWorkflow implements admin.Workflows.
func (a *Admin) ShowWorkflow(ctx context.Context, r schema.WorkflowRef, payloads bool) (d schema.WorkflowDetail,
	err error) {
	const op = "workflows.Show"
	// The engine returns the failure only with the payloads, and operators always see the failure.
	o, s, err := a.instance(ctx, op, &r, true)
	if err != nil {
		return d, err
	}
	d.WorkflowStatus = schema.WorkflowStatus{WorkflowRef: schema.WorkflowRef{App: o.ID, Namespace: o.Namespace,
		ID: r.ID}, Name: short(s.GetName()), Status: statusText(s.GetWorkflowStatus()),
		Created: momentOf(s.GetCreatedTimestamp()), Updated: momentOf(s.GetLastUpdatedTimestamp()),
		Parent: s.GetParentInstanceId().GetValue()}
	d.Version, d.Execution = short(s.GetVersion().GetValue()), short(s.GetExecutionId().GetValue())
	d.Scheduled, d.Started = momentOf(s.GetScheduledStartTimestamp()), momentOf(s.GetStartedAt())
	d.Completed, d.ParentApp = momentOf(s.GetCompletedTimestamp()), s.GetParentAppId().GetValue()
	d.Tags, d.Failure, d.Workers = s.GetTags(), failureOf(s.GetFailureDetails(), payloads), o.workers
	if payloads {
		a.Logger.Info("the payloads of a workflow were read by an operator", "app_id", o.ID, "instance", r.ID)
		d.Input, d.Output, d.Custom = payloadOf(s.GetInput()), payloadOf(s.GetOutput()), payloadOf(s.GetCustomStatus())
	}
	picture := newSteps(payloads)
	d.MoreSteps, err = a.read(ctx, o.owner, r.ID, 0, func(position int, e *protos.HistoryEvent) bool {
		if position >= maxPicture {
			return false
		}
		picture.add(e)
		d.Events++
		return true
	})
	d.Steps, d.Turns = picture.list, picture.turns
	if d.Steps == nil {
		d.Steps = []schema.WorkflowStep{}
	}
	return d, err
}

// WorkflowHistory implements admin.Workflows.
func (a *Admin) WorkflowHistory(ctx context.Context, r schema.WorkflowRef, first, limit int,
	payloads bool) (h schema.WorkflowHistory, err error) {
	const op = "workflows.History"
	o, _, err := a.instance(ctx, op, &r, false)
	if err != nil {
		return h, err
	}
	if payloads {
		a.Logger.Info("the payloads of a workflow were read by an operator", "app_id", o.ID, "instance", r.ID)
	}
	h.Events = []schema.WorkflowEvent{}
	h.More, err = a.read(ctx, o.owner, r.ID, first, func(position int, e *protos.HistoryEvent) bool {
		if len(h.Events) == min(max(limit, 1), maxPage) {
			return false
		}
		h.Events = append(h.Events, eventOf(position, e, payloads))
		return true
	})
	return h, err
}
