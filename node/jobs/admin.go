package jobs

import (
	"context"
	"log/slog"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/jobproto"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/due"
)

// Admin implements the part of the admin API about jobs.
type Admin struct {
	Jobs   *Jobs
	Logger *slog.Logger
}

func statusOf(w *due.Work) schema.JobStatus {
	app := appOf(w.Home)
	at := func(ms uint64) time.Time {
		return time.UnixMilli(int64(ms)).UTC() //nolint:gosec // before the year 10000
	}
	s := schema.JobStatus{App: app.ID, Namespace: app.Namespace, Name: w.Name, Schedule: w.Spec.Schedule,
		Due: at(w.State.Due), Next: at(w.State.At), Ticks: w.State.Ticks, Attempts: w.State.Attempt,
		Error: w.State.Error}
	if job, err := jobproto.Decode(w.Spec.Payload); err == nil {
		if s.Job, err = jobproto.JSON(job); err != nil {
			s.Job = nil
		}
	}
	return s
}

// ListJobs implements admin.Jobs.
func (a Admin) ListJobs(ctx context.Context, r schema.JobSelection) (out []schema.JobStatus, err error) {
	p, err := a.Jobs.parts()
	if err != nil {
		return nil, err
	}
	homes, err := p.work.Homes(ctx, due.KindJob)
	if err != nil {
		return nil, err
	}
	for _, h := range homes {
		if app := appOf(h); r.App != "" && app.ID != r.App || r.Namespace != "" && app.Namespace != r.Namespace {
			continue
		}
		callable := a.Jobs.Room(h) > 0
		for after, more := "", true; more; {
			var list []due.Work
			if list, more, err = p.work.List(ctx, h, r.Name, after, api.MaxJobs); err != nil {
				return nil, err
			}
			for i := range list {
				after = list[i].Name
				if r.Exact && after != r.Name {
					continue
				}
				s := statusOf(&list[i])
				if !callable && time.Now().After(s.Next) {
					s.Waiting = "an instance"
				}
				out = append(out, s)
			}
			if len(list) == 0 {
				break
			}
		}
	}
	return out, nil
}

// ChangeJob implements admin.Jobs.
func (a Admin) ChangeJob(ctx context.Context, r schema.JobChange) (schema.JobStatus, error) {
	const op = "jobs.ChangeJob"
	list, err := a.ListJobs(ctx, schema.JobSelection{App: r.App, Namespace: r.Namespace, Name: r.Name, Exact: true})
	if err != nil {
		return schema.JobStatus{}, err
	}
	switch {
	case len(list) == 0:
		return schema.JobStatus{}, &fault.Error{Code: fault.NotFound, Op: op, Key: r.Name, Msg: "application " + r.App +
			" has no job " + r.Name, Hint: "jobs list shows the jobs"}
	case len(list) > 1:
		return schema.JobStatus{}, &fault.Error{Code: fault.Conflict, Op: op, Key: r.Name,
			Msg:  "applications " + r.App + " of several namespaces have a job " + r.Name,
			Hint: "name one with --namespace"}
	}
	p, err := a.Jobs.parts()
	if err != nil {
		return schema.JobStatus{}, err
	}
	h := home(api.App{ID: list[0].App, Namespace: list[0].Namespace})
	found, what := false, "run"
	if r.Delete {
		what = "deleted"
		found, err = p.work.Remove(ctx, h, r.Name)
	} else {
		found, err = p.work.Run(ctx, h, r.Name)
	}
	if err == nil && !found {
		err = &fault.Error{Code: fault.NotFound, Op: op, Key: r.Name, Msg: "the job has ended in the meantime"}
	}
	if err != nil {
		return schema.JobStatus{}, err
	}
	a.Logger.Info("a job was "+what+" by an operator", "app_id", r.App, "job", r.Name)
	return list[0], nil
}
