package http

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/jobproto"
	"github.com/quorate/quorate/internal/fault"
)

// jobRoutes serves jobs.
type jobRoutes struct {
	*core
	jobs *api.Jobs
}

func (s *jobRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/jobs", serve: s.listJobs},
		{verbs: "DELETE", path: "/v1.0/jobs", serve: s.deleteJobs},
		{verbs: "POST", path: "/v1.0/jobs/*", serve: s.scheduleJob},
		{verbs: "POST", path: "/v1.0-alpha1/jobs/*", serve: s.scheduleJob},
		{verbs: "GET", path: "/v1.0/jobs/*", serve: s.getJob},
		{verbs: "GET", path: "/v1.0-alpha1/jobs/*", serve: s.getJob},
		{verbs: "DELETE", path: "/v1.0/jobs/*", serve: s.deleteJob},
		{verbs: "DELETE", path: "/v1.0-alpha1/jobs/*", serve: s.deleteJob},
	}
}

// jobName returns the part of a path after "jobs": the name of a job.
func jobName(u *url.URL) (string, error) {
	path := restOf(u, "/")
	for range 2 { // the version and "jobs"
		if _, err := path.next(); err != nil {
			return "", err
		}
	}
	return path.all()
}

// scheduleJob serves POST /v1.0/jobs/{name} and its alpha form.
func (s *jobRoutes) scheduleJob(p *reply, r *http.Request) error {
	name, err := jobName(r.URL)
	if err != nil {
		return err
	}
	if failure := api.CheckJobName(name); failure != nil {
		return failure // before Parse, because protobuf cannot encode every name
	}
	body, err := s.body(p, r)
	if err != nil {
		return err
	}
	defer s.release(body)
	if err := s.reserve(p, r, jobElements(body.data)*jobMemory); err != nil {
		return err
	}
	in, overwrite, err := jobproto.Parse(name, body.data)
	if err != nil {
		return err
	}
	j, err := jobproto.ToJob(in)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	if err := s.jobs.Schedule(ctx, &j, overwrite); err != nil {
		return err
	}
	p.empty()
	return nil
}

// jobMemory is the number of bytes that are reserved for each decoded element of a job or a reminder.
const jobMemory = 128

// jobElements returns an upper bound of the number of elements in a JSON text. It counts commas, colons and opening
// brackets, but not those within strings. The result may be wrong for invalid JSON, which is refused before its
// elements are decoded.
func jobElements(body []byte) (n int64) {
	inString := false
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			inString = !inString
		case '\\':
			i++ // the next byte is escaped; only strings have escapes
		case ',', ':', '[', '{':
			if !inString {
				n++
			}
		}
	}
	return n
}

// getJob serves GET /v1.0/jobs/{name} and its alpha form.
func (s *jobRoutes) getJob(p *reply, r *http.Request) error {
	name, err := jobName(r.URL)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	j, err := s.jobs.Get(ctx, name)
	if err != nil {
		return err
	}
	text, err := jobText(&j)
	if err != nil {
		return err
	}
	return p.send(http.StatusOK, valueJSON, text)
}

func jobText(j *api.Job) (json.RawMessage, error) {
	job, err := jobproto.Decode(j.Record)
	if err != nil {
		return nil, err
	}
	return jobproto.JSON(job)
}

// deleteJob serves DELETE /v1.0/jobs/{name} and its alpha form.
func (s *jobRoutes) deleteJob(p *reply, r *http.Request) error {
	name, err := jobName(r.URL)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	if err := s.jobs.Delete(ctx, name); err != nil {
		return err
	}
	p.empty()
	return nil
}

// listJobs serves GET /v1.0/jobs.
func (s *jobRoutes) listJobs(p *reply, r *http.Request) error {
	q := r.URL.Query()
	limit := 0
	if text := q.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > api.MaxJobs {
			return api.MalformedRequest("limit is no number from 1 to " + strconv.Itoa(api.MaxJobs))
		}
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	list, more, err := s.jobs.List(ctx, q.Get("prefix"), q.Get("token"), limit)
	if err != nil {
		return err
	}
	if err := affordJobs(p, list); err != nil {
		return err
	}
	out := struct {
		Jobs  []json.RawMessage `json:"jobs"`
		Token string            `json:"token,omitempty"` // where the next page begins
	}{Jobs: make([]json.RawMessage, len(list))}
	for i := range list {
		if out.Jobs[i], err = jobText(&list[i]); err != nil {
			return err
		}
	}
	if more && len(list) > 0 {
		out.Token = list[len(list)-1].Name
	}
	body, err := json.Marshal(out)
	if err != nil {
		return fault.Wrap(err, "http.listJobs", "encoding the answer")
	}
	return p.send(http.StatusOK, valueJSON, body)
}

// affordJobs reserves memory for an answer that lists jobs: for the jobs, their JSON, and the whole answer. A small
// answer needs no reservation (see countedAnswer).
func affordJobs(p *reply, list []api.Job) error {
	const copies = 3
	size := 0
	for i := range list {
		size += len(list[i].Record)
	}
	if err := p.room(copies * size); err != nil {
		return api.Overloaded(err)
	}
	return nil
}

// deleteJobs serves DELETE /v1.0/jobs?prefix=.
func (s *jobRoutes) deleteJobs(p *reply, r *http.Request) error {
	q := r.URL.Query()
	if !q.Has("prefix") {
		return api.MalformedRequest("prefix is missing (an empty one deletes all jobs of the application)")
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	if err := s.jobs.DeletePrefix(ctx, q.Get("prefix")); err != nil {
		return err
	}
	p.empty()
	return nil
}
