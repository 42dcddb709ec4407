package console

import (
	"context"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// Work lists jobs and actors. Implementations are safe for concurrent use.
type Work interface {
	// ListJobs lists jobs of all applications. It returns fault.TooLarge if there are too many for one list.
	ListJobs(ctx context.Context, r schema.JobSelection) ([]schema.JobStatus, error)
	// ListActors describes the actors of all applications, with at most limit active actors and reminders of each.
	ListActors(ctx context.Context, limit int) ([]schema.ActorsStatus, error)
}

const maxRows = 500 // maximum number of lines of a table

// jobsBody lists jobs, without their data.
func jobsBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	q := r.URL.Query()
	pick := schema.JobSelection{App: q.Get("app"), Name: q.Get("name"), Brief: true}
	choose := card("choose", "Choose jobs", h(`<form class="inline" method="get" action="/jobs">%%`+
		`<button>Show</button></form>`, label("Application", "app", pick.App, ""),
		label("Prefix of the name", "name", pick.Name, "")))
	jobs, err := r.console.config.Work.ListJobs(ctx, pick)
	if fault.Is(err, fault.TooLarge) {
		return choose + card("jobs", "Jobs", h("<p>%</p>", esc("There are too many jobs to list: choose an "+
			"application or a prefix."))), nil
	}
	if err != nil {
		return "", err
	}
	now := r.console.config.Now()
	var rows []html
	late := 0
	for i := range jobs {
		j := &jobs[i]
		if isLate(j, now) {
			late++
		}
		if i < maxRows {
			rows = append(rows, row(code(j.Name), text(j.App), text(j.Schedule), jobState(j, now),
				esc(stamp(j.Due, now)), esc(stamp(j.Next, now)), num(j.Ticks), num(j.Attempts), text(j.Error)))
		}
	}
	return choose + card("jobs", "Jobs", h("<p>%</p>", esc(plural(len(jobs), "job")+", "+strconv.Itoa(late)+
		" past due."+cut(len(jobs))))+grid("Jobs",
		"Job|Application|Schedule|State|Due (UTC)|Next attempt (UTC)|Done|Failed|Last error", rows)) +
		card("runs", "Last runs", runTable(r.snap.runs(pick), now)+dim("Each node remembers the last "+
			"runs of the jobs whose group it leads, at most 8 of each job and 128 in all, since it started.")), nil
}

// runs returns the job runs that the nodes remember, the newest first, at most maxRows. pick selects the jobs.
func (s *Snapshot) runs(pick schema.JobSelection) (out []schema.JobRun) {
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for i := range m.View.Runs {
			one := &m.View.Runs[i]
			if (pick.App == "" || pick.App == one.App) && strings.HasPrefix(one.Name, pick.Name) {
				out = append(out, *one)
			}
		}
	}
	sort.SliceStable(out, func(i, k int) bool { return out[i].At.After(out[k].At) })
	return out[:min(len(out), maxRows)]
}

func runTable(runs []schema.JobRun, now time.Time) html {
	var rows []html
	for i := range runs {
		one, level := &runs[i], levelWarn
		switch one.Outcome {
		case "done":
			level = levelOK
		case "failed":
			level = levelFail
		}
		rows = append(rows, row(esc(stamp(one.At, now)), code(one.Name), text(one.App),
			badge(level, one.Outcome), leaderLink(one.Node), num(one.Tick), num(one.Attempt),
			esc(seconds(one.Took.Seconds())), text(one.Error)))
	}
	return grid("Runs", "Began (UTC)|Job|Application|Outcome|Node|Tick|Attempt|Took|Error", rows)
}

// lateAfter is how long a job may be due before it counts as past due.
const lateAfter = 5 * time.Second

func isLate(j *schema.JobStatus, now time.Time) bool { return now.Sub(j.Due) > lateAfter }

func jobState(j *schema.JobStatus, now time.Time) html {
	switch {
	case isLate(j, now):
		return badge(levelFail, "past due for "+age(now.Sub(j.Due)))
	case j.Attempts > 0 || j.Error != "":
		return badge(levelWarn, "failed last time")
	case j.Due.After(now):
		return badge(levelOK, "in "+age(j.Due.Sub(now)))
	default:
		return badge(levelOK, "due now")
	}
}

// stamp formats a time in UTC. It omits the date if the time is today.
//
//go:noinline
func stamp(t, now time.Time) string {
	if t, now = t.UTC(), now.UTC(); t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("Jan 2 15:04:05")
}

// cut returns a note that a table shows only the first of n rows, or "" if the table has room for all n rows.
func cut(n int) string {
	if n <= maxRows {
		return ""
	}
	return " The first " + strconv.Itoa(maxRows) + " are shown."
}

// actorsBody renders the applications that host actors, with their instances, active actors and pending reminders.
func actorsBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	list, err := r.console.config.Work.ListActors(ctx, maxRows)
	if err != nil {
		return "", err
	}
	var cards []html
	for i := range list {
		cards = append(cards, actorsOf(&list[i], "actors-"+strconv.Itoa(i), r.console.config.Now()))
	}
	if len(cards) == 0 {
		return card("actors", "No actors", "<p>No application of this cluster has registered types of actors.</p>"), nil
	}
	return joined(cards), nil
}

func actorsOf(a *schema.ActorsStatus, id string, now time.Time) html {
	var hosts, actors, reminders []html
	for i := range a.Hosts {
		one := &a.Hosts[i]
		state := badge(levelOK, "takes actors")
		if one.Draining {
			state = badge(levelWarn, "draining")
		}
		hosts = append(hosts, row(link(one.Node, "nodes", one.Node), state, esc(strings.Join(one.Types, ", ")),
			esc(strconv.Itoa(one.Actors))))
	}
	for i := range a.Actors {
		one := &a.Actors[i]
		owner := badge(levelWarn, "the host has stopped")
		if one.Node != "" {
			owner = link(one.Node, "nodes", one.Node)
		}
		actors = append(actors, row(text(one.Type), code(one.ID), owner, num(one.Epoch)))
	}
	for i := range a.Reminders {
		one := &a.Reminders[i]
		reminders = append(reminders, row(text(one.Type), code(one.ID), code(one.Name), text(one.Schedule),
			jobState(&one.JobStatus, now), esc(stamp(one.Next, now)), num(one.Ticks), num(one.Attempts),
			text(one.Error)))
	}
	more, moreReminders := "", ""
	if a.More {
		more = cut(maxRows + 1)
	}
	if a.MoreReminders {
		moreReminders = cut(maxRows + 1)
	}
	return card(id, "Actors of "+a.App, pairs(pair("Types", strings.Join(a.Types, ", ")), pair("State store", a.Store))+
		"<h3>Hosts</h3>"+grid("Hosts of "+a.App, "Node|State|Types|Active actors", hosts)+
		h("<h3>Active actors</h3><p>%</p>", esc(plural(len(a.Actors), "actor")+"."+more))+
		grid("Active actors of "+a.App, "Type|Id|Owner|Epoch", actors)+
		h("<h3>Pending reminders</h3><p>%</p>", esc(plural(len(a.Reminders), "reminder")+"."+moreReminders))+
		grid("Pending reminders of "+a.App, "Type|Id|Reminder|Period|State|Next attempt (UTC)|Done|Failed|Last error",
			reminders))
}
