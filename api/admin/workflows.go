package admin

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API about workflows.
const (
	WorkflowsPath       = "/v1/workflows"
	WorkflowPath        = "/v1/workflows/instance"
	WorkflowHistoryPath = "/v1/workflows/history"
	WorkflowStartPath   = "/v1/workflows/start"
	WorkflowChangePath  = "/v1/workflows/change"
	WorkflowPurgePath   = "/v1/workflows/purge"
	WorkflowRerunPath   = "/v1/workflows/rerun"
)

// Bounds of the number of instances or events in an answer.
const (
	defaultWorkflows = 100
	maxWorkflows     = 1000
)

// maxInput bounds the body of a request with an input, in bytes.
const maxInput = 16 << 20

// Workflows is the part of Node that shows and changes workflows. Results contain payloads only if the parameter
// payloads is true. Payloads are the inputs, outputs and other data of applications.
type Workflows interface {
	// ListWorkflows lists instances in the order of application and time of creation.
	ListWorkflows(ctx context.Context, r schema.WorkflowSelection) (schema.WorkflowPage, error)
	// ShowWorkflow describes an instance and its steps.
	ShowWorkflow(ctx context.Context, r schema.WorkflowRef, payloads bool) (schema.WorkflowDetail, error)
	// WorkflowHistory returns at most limit events of an instance from the position first on.
	WorkflowHistory(ctx context.Context, r schema.WorkflowRef, first, limit int,
		payloads bool) (schema.WorkflowHistory, error)
	// StartWorkflow starts an instance. It returns fault.NotFound if the cluster does not know the application.
	StartWorkflow(ctx context.Context, r schema.WorkflowStart) (schema.WorkflowChanged, error)
	// ChangeWorkflow changes an instance. It returns fault.Conflict if the change has no effect on an instance with
	// its present status.
	ChangeWorkflow(ctx context.Context, r schema.WorkflowChange) (schema.WorkflowChanged, error)
	// PurgeWorkflows removes instances.
	PurgeWorkflows(ctx context.Context, r schema.WorkflowPurge) (schema.WorkflowsPurged, error)
	// RerunWorkflow starts a new instance from the history of another one.
	RerunWorkflow(ctx context.Context, r schema.WorkflowRerun) (schema.WorkflowChanged, error)
}

// numberOf parses a query parameter as a number from 0 to highest. If the query lacks the parameter, numberOf returns
// the default otherwise. If the value is not such a number, numberOf returns fault.Invalid.
func numberOf(op string, q url.Values, name string, otherwise, highest int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > highest {
		return 0, fault.New(fault.Invalid, op, name+" is no number from 0 to "+strconv.Itoa(highest))
	}
	return n, nil
}

// momentOf parses a query parameter as a time. If the query lacks the parameter, momentOf returns the zero time.
func momentOf(op string, q url.Values, name string) (at time.Time, err error) {
	if text := q.Get(name); text != "" {
		if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return at, fault.New(fault.Invalid, op, name+" is no time in the form of RFC 3339")
		}
	}
	return at, nil
}

func (h *handler) workflows(w http.ResponseWriter, r *http.Request) {
	const op = "admin.workflows"
	q := r.URL.Query()
	s := schema.WorkflowSelection{App: q.Get("app"), Namespace: q.Get("namespace"), Name: q.Get("name"),
		Prefix: q.Get("prefix"), Statuses: q["status"], After: q.Get("after")}
	var err error
	if s.Limit, err = numberOf(op, q, "limit", defaultWorkflows, maxWorkflows); err == nil {
		s.Before, err = momentOf(op, q, "before")
	}
	if err == nil {
		s.Since, err = momentOf(op, q, "since")
	}
	var page schema.WorkflowPage
	if err == nil {
		page, err = h.node.ListWorkflows(r.Context(), s)
	}
	h.answer(w, page, err)
}

func workflowOf(q url.Values) schema.WorkflowRef {
	return schema.WorkflowRef{App: q.Get("app"), Namespace: q.Get("namespace"), ID: q.Get("id")}
}

func (h *handler) workflow(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	d, err := h.node.ShowWorkflow(r.Context(), workflowOf(q), q.Get("payloads") == "true")
	h.answer(w, d, err)
}

func (h *handler) workflowHistory(w http.ResponseWriter, r *http.Request) {
	const op = "admin.workflowHistory"
	q := r.URL.Query()
	first, err := numberOf(op, q, "first", 0, 1<<31-1)
	limit := 0
	if err == nil {
		limit, err = numberOf(op, q, "limit", defaultWorkflows, maxWorkflows)
	}
	var events schema.WorkflowHistory
	if err == nil {
		events, err = h.node.WorkflowHistory(r.Context(), workflowOf(q), first, limit, q.Get("payloads") == "true")
	}
	h.answer(w, events, err)
}

func (h *handler) startWorkflow(w http.ResponseWriter, r *http.Request) {
	h.steer(w, r, "admin.startWorkflow", new(schema.WorkflowStart), func(ctx context.Context, body any) (any, error) {
		return h.node.StartWorkflow(ctx, *body.(*schema.WorkflowStart))
	})
}

func (h *handler) changeWorkflow(w http.ResponseWriter, r *http.Request) {
	h.steer(w, r, "admin.changeWorkflow", new(schema.WorkflowChange), func(ctx context.Context, body any) (any, error) {
		return h.node.ChangeWorkflow(ctx, *body.(*schema.WorkflowChange))
	})
}

func (h *handler) purgeWorkflows(w http.ResponseWriter, r *http.Request) {
	h.steer(w, r, "admin.purgeWorkflows", new(schema.WorkflowPurge), func(ctx context.Context, body any) (any, error) {
		return h.node.PurgeWorkflows(ctx, *body.(*schema.WorkflowPurge))
	})
}

func (h *handler) rerunWorkflow(w http.ResponseWriter, r *http.Request) {
	h.steer(w, r, "admin.rerunWorkflow", new(schema.WorkflowRerun), func(ctx context.Context, body any) (any, error) {
		return h.node.RerunWorkflow(ctx, *body.(*schema.WorkflowRerun))
	})
}

// steer decodes the body of a request, passes it to apply, and answers with the result. The body may have up to
// maxInput bytes, because it may contain the input of a workflow.
func (h *handler) steer(w http.ResponseWriter, r *http.Request, op string, body any,
	apply func(ctx context.Context, body any) (any, error)) {
	if err := decodeUpTo(w, r, op, body, maxInput); err != nil {
		h.answer(w, nil, err)
		return
	}
	result, err := apply(r.Context(), body)
	h.answer(w, result, err)
}
