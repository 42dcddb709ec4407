package jobs

import (
	"context"
	"log/slog"
	"strconv"
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

// statusOf returns the status of a job. If whole is true, the status includes the definition of the job as JSON.
func statusOf(w *due.Work, whole bool) schema.JobStatus {
	app := appOf(w.Home)
	at := func(ms uint64) time.Time {
		return time.UnixMilli(int64(ms)).UTC() //nolint:gosec // before the year 10000
	}
	s := schema.JobStatus{App: app.ID, Namespace: app.Namespace, Name: w.Name, Schedule: w.Spec.Schedule,
		Due: at(w.State.Due), Next: at(w.State.At), Ticks: w.State.Ticks, Attempts: w.State.Attempt,
		Error: w.State.Error}
	if !whole {
		return s
	}
	if job, err := jobproto.Decode(w.Spec.Payload); err == nil {
		if s.Job, err = jobproto.JSON(job); err != nil {
			s.Job = nil
		}
	}
	return s
}

// The memory limit of one list of jobs, and the estimated memory of one job in it.
const (
	maxListBytes = 64 << 20 // bytes of the jobs
	jobMemory    = 256      // bytes of the status of a job, without its texts and its JSON
)

// listing is a list of jobs with limited memory.
type listing struct {
	out  []schema.JobStatus
	size int
}

// add adds a job. It returns fault.TooLarge if the list then needs more than maxListBytes.
func (l *listing) add(s *schema.JobStatus) error {
	if l.size += jobMemory + len(s.Name) + len(s.Schedule) + len(s.Error) + len(s.Job); l.size > maxListBytes {
		return &fault.Error{Code: fault.TooLarge, Op: "jobs.ListJobs",
			Msg: "the jobs need more than " + strconv.Itoa(maxListBytes) + " bytes",
			Hint: "select fewer jobs by application, namespace or prefix (jobs list has --app, --namespace and " +
				"--prefix), or list them without --json"}
	}
	l.out = append(l.out, *s)
	return nil
}

// ListJobs implements admin.Jobs. It returns fault.TooLarge if the result would need more than maxListBytes of memory.
func (a Admin) ListJobs(ctx context.Context, r schema.JobSelection) ([]schema.JobStatus, error) {
	p, err := a.Jobs.parts()
	if err != nil {
		return nil, err
	}
	homes, err := p.work.Homes(ctx, due.KindJob)
	if err != nil {
		return nil, err
	}
	var l listing
	for _, h := range homes {
		if app := appOf(h); r.App != "" && app.ID != r.App || r.Namespace != "" && app.Namespace != r.Namespace {
			continue
		}
		callable := a.Jobs.Room(h) > 0
		for after, more := "", true; more; {
			var page []due.Work
			if page, more, err = pageOf(ctx, p.work, h, r, after); err != nil {
				return nil, err
			}
			for i := range page {
				after = page[i].Name
				s := statusOf(&page[i], !r.Brief)
				if !callable && time.Now().After(s.Next) {
					s.Waiting = "an instance"
				}
				if err := l.add(&s); err != nil {
					return nil, err
				}
			}
			if len(page) == 0 {
				break
			}
		}
	}
	return l.out, nil
}

// pageOf returns one page of the jobs of an application that r selects. The parameter after is the name of the last job
// on the previous page, or empty for the first page. The result more is true if there are more pages.
func pageOf(ctx context.Context, work due.Client, h due.Home, r schema.JobSelection, after string) (page []due.Work,
	more bool, err error) {
	if !r.Exact {
		return work.List(ctx, h, r.Name, after, api.MaxJobs)
	}
	w, found, err := work.Get(ctx, h, r.Name)
	if err != nil || !found {
		return nil, false, err
	}
	return []due.Work{w}, false, nil
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
