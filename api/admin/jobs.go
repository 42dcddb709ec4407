package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API about jobs.
const (
	JobsPath      = "/v1/jobs"
	JobChangePath = "/v1/jobs/change"
)

// Jobs is the part of Node that shows jobs and changes them.
type Jobs interface {
	// ListJobs lists jobs of all applications. It returns fault.TooLarge if there are too many for one list.
	ListJobs(ctx context.Context, r schema.JobSelection) ([]schema.JobStatus, error)
	// ChangeJob deletes a job or makes it due now, and returns it as it was. It returns fault.NotFound if there is no
	// such job, and fault.Conflict if several match.
	ChangeJob(ctx context.Context, r schema.JobChange) (schema.JobStatus, error)
}

func (h *handler) jobs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	list, err := h.node.ListJobs(r.Context(), schema.JobSelection{App: q.Get("app"), Namespace: q.Get("namespace"),
		Name: q.Get("name"), Exact: q.Get("exact") == "true", Brief: q.Get("brief") == "true"})
	if list == nil {
		list = []schema.JobStatus{}
	}
	h.answer(w, list, err)
}

func (h *handler) changeJob(w http.ResponseWriter, r *http.Request) {
	const op = "admin.changeJob"
	var body schema.JobChange
	if err := decode(w, r, op, &body); err != nil {
		h.answer(w, nil, err)
		return
	}
	if body.App == "" || body.Name == "" {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "no job is named",
			Hint: "give an app id and the name of a job; jobs list shows them"})
		return
	}
	changed, err := h.node.ChangeJob(r.Context(), body)
	h.answer(w, changed, err)
}
