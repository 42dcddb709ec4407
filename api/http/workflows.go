package http

import (
	"encoding/json"
	"net/http"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/internal/fault"
)

// workflowRoutes serves workflows. The part of a path that names a component may be any text, as in Dapr.
type workflowRoutes struct {
	*core
	workflows *workflows.Service
}

func (s *workflowRoutes) routes() []route {
	var out []route
	for _, version := range []string{"/v1.0", "/v1.0-beta1", "/v1.0-alpha1"} {
		base := version + "/workflows/{component}/"
		out = append(out,
			route{verbs: "POST", path: base + "{workflow}/start", serve: s.start},
			route{verbs: "GET", path: base + "{instance}", serve: s.get},
			route{verbs: "POST", path: base + "{instance}/terminate", serve: s.terminate},
			route{verbs: "POST", path: base + "{instance}/pause", serve: s.pause},
			route{verbs: "POST", path: base + "{instance}/resume", serve: s.resume},
			route{verbs: "POST", path: base + "{instance}/purge", serve: s.purge},
			route{verbs: "POST", path: base + "{instance}/raiseEvent/{event}", serve: s.raise})
	}
	return out
}

// named parses a path such as /v1.0/workflows/{component}/{name}/pause. It returns the segment after the component,
// which is the name of a workflow or the id of an instance. It also returns the rest of the path after the operation,
// such as {event} in .../{name}/raiseEvent/{event}.
func named(r *http.Request) (name string, path rest, err error) {
	path = restOf(r.URL, "/")
	for range 3 { // the version, "workflows" and the component
		if _, err := path.next(); err != nil {
			return "", path, err
		}
	}
	if name, err = path.next(); err == nil {
		_, err = path.next()
	}
	return name, path, err
}

// text returns the body of a request as the payload of a workflow, or nil if the body is empty.
func (s *workflowRoutes) text(p *reply, r *http.Request) (*wrapperspb.StringValue, error) {
	body, err := s.body(p, r)
	if err != nil {
		return nil, err
	}
	defer s.release(body)
	if len(body.data) == 0 {
		return nil, nil
	}
	return wrapperspb.String(string(body.data)), nil
}

// start serves POST /v1.0/workflows/{component}/{workflow}/start.
func (s *workflowRoutes) start(p *reply, r *http.Request) error {
	name, _, err := named(r)
	if err != nil {
		return err
	}
	input, err := s.text(p, r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	ctx := s.deadline(p, r)
	defer ctx.end()
	id, err := s.workflows.Start(ctx, &workflows.StartRequest{ID: q.Get("instanceID"), Workflow: name,
		App: q.Get("appID"), Input: input, Trace: r.Header.Get(headerTraceparent)})
	if err != nil {
		return err
	}
	body, err := json.Marshal(struct {
		ID string `json:"instanceID"`
	}{id})
	if err != nil {
		return fault.Wrap(err, "http.startWorkflow", "encoding the answer")
	}
	p.respond(http.StatusAccepted, valueJSON, body)
	return nil
}

// instanceBody is the body of the answer about an instance.
type instanceBody struct {
	ID         string            `json:"instanceID"`
	Name       string            `json:"workflowName"`
	Created    string            `json:"createdAt"`
	Updated    string            `json:"lastUpdatedAt"`
	Status     string            `json:"runtimeStatus"`
	Properties map[string]string `json:"properties"`
}

// get serves GET /v1.0/workflows/{component}/{instance}.
func (s *workflowRoutes) get(p *reply, r *http.Request) error {
	id, _, err := named(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	state, err := s.workflows.Get(ctx, id, r.URL.Query().Get("appID"))
	if err != nil {
		return err
	}
	body, err := json.Marshal(instanceBody{ID: state.GetInstanceId(), Name: state.GetName(),
		Created:    state.GetCreatedTimestamp().AsTime().Format(time.RFC3339Nano),
		Updated:    state.GetLastUpdatedTimestamp().AsTime().Format(time.RFC3339Nano),
		Status:     workflows.StatusText(state.GetWorkflowStatus()),
		Properties: workflows.Properties(state)})
	if err != nil {
		return fault.Wrap(err, "http.getWorkflow", "encoding the answer")
	}
	return p.send(http.StatusOK, valueJSON, body)
}

// change serves an operation that changes a workflow instance. It calls do with the id of the instance and the id of
// its application. The answer is 202 without a body.
func (s *workflowRoutes) change(p *reply, r *http.Request, do func(ctx *deadline, id, app string) error) error {
	id, _, err := named(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	if err := do(ctx, id, r.URL.Query().Get("appID")); err != nil {
		return err
	}
	p.WriteHeader(http.StatusAccepted)
	return nil
}

// terminate serves POST /v1.0/workflows/{component}/{instance}/terminate.
func (s *workflowRoutes) terminate(p *reply, r *http.Request) error {
	return s.change(p, r, func(ctx *deadline, id, app string) error { return s.workflows.Terminate(ctx, id, app) })
}

// pause serves POST /v1.0/workflows/{component}/{instance}/pause.
func (s *workflowRoutes) pause(p *reply, r *http.Request) error {
	return s.change(p, r, func(ctx *deadline, id, app string) error { return s.workflows.Pause(ctx, id, app) })
}

// resume serves POST /v1.0/workflows/{component}/{instance}/resume.
func (s *workflowRoutes) resume(p *reply, r *http.Request) error {
	return s.change(p, r, func(ctx *deadline, id, app string) error { return s.workflows.Resume(ctx, id, app) })
}

// purge serves POST /v1.0/workflows/{component}/{instance}/purge.
func (s *workflowRoutes) purge(p *reply, r *http.Request) error {
	return s.change(p, r, func(ctx *deadline, id, app string) error { return s.workflows.Purge(ctx, id, app) })
}

// raise serves POST /v1.0/workflows/{component}/{instance}/raiseEvent/{event}.
func (s *workflowRoutes) raise(p *reply, r *http.Request) error {
	_, path, err := named(r)
	if err != nil {
		return err
	}
	event, err := path.next()
	if err != nil {
		return err
	}
	data, err := s.text(p, r)
	if err != nil {
		return err
	}
	return s.change(p, r, func(ctx *deadline, id, app string) error {
		return s.workflows.Raise(ctx, id, app, event, data)
	})
}
