package console

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// Workflows shows workflows. Implementations are safe for concurrent use.
type Workflows interface {
	// ListWorkflows lists instances in the order of application and time of creation.
	ListWorkflows(ctx context.Context, r schema.WorkflowSelection) (schema.WorkflowPage, error)
	// ShowWorkflow describes an instance and its steps.
	ShowWorkflow(ctx context.Context, r schema.WorkflowRef, payloads bool) (schema.WorkflowDetail, error)
}

// workflowsOfPage is how many instances a page lists.
const workflowsOfPage = 50

// workflowsBody lists instances of workflows, and shows one of them.
func workflowsBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	q := r.URL.Query()
	var parts []html
	if id := q.Get("id"); id != "" {
		parts = append(parts, r.workflow(ctx, schema.WorkflowRef{App: q.Get("app"), Namespace: q.Get("namespace"),
			ID: id}, q.Get("payloads") == "true"))
	}
	pick := schema.WorkflowSelection{App: q.Get("app"), Namespace: q.Get("namespace"), Name: q.Get("name"),
		Limit: workflowsOfPage, After: q.Get("after")}
	status, within := q.Get("status"), q.Get("within")
	if status != "" {
		pick.Statuses = []string{status}
	}
	now := r.console.config.Now()
	if d, err := time.ParseDuration(within); err == nil && d > 0 {
		pick.Since = now.Add(-d)
	}
	parts = append(parts, card("choose", "Choose instances", h(`<form class="inline" method="get" action="/workflows">`+
		`%%%%<button>Show</button></form>`, label("Application", "app", pick.App, ""),
		label("Workflow", "name", pick.Name, ""),
		choose("Status", "status", status, []string{"=any", "RUNNING", "PENDING", "SUSPENDED", "STALLED", "COMPLETED",
			"FAILED", "TERMINATED"}),
		choose("Created", "within", within, []string{"=any time", "1h=in the last hour", "24h=in the last day",
			"168h=in the last week"}))))
	page, err := r.console.config.Workflows.ListWorkflows(ctx, pick)
	if err != nil {
		return joined(append(parts, card("instances", "Instances", failure(textOf(err))))), nil
	}
	var rows []html
	for i := range page.Instances {
		w := &page.Instances[i]
		rows = append(rows, row(instanceLink(w.WorkflowRef, w.ID), text(w.App), text(w.Name), workflowBadge(w.Status),
			esc(stamp(w.Created, now)), esc(stamp(w.Updated, now)), text(w.Parent)))
	}
	table := grid("Instances", "Instance|Application|Workflow|Status|Created (UTC)|Changed (UTC)|Parent", rows)
	if page.Note != "" {
		table += dim("Note: " + page.Note + ".")
	}
	if page.Next != "" {
		next := url.Values{"after": {page.Next}}
		for _, one := range [...][2]string{{"app", pick.App}, {"namespace", pick.Namespace}, {"name", pick.Name},
			{"status", status}, {"within", within}} {
			if one[1] != "" {
				next.Set(one[0], one[1])
			}
		}
		table += h(`<a class="button" href="%">Next page</a>`, esc("/workflows?"+next.Encode()))
	}
	return joined(append(parts, card("instances", "Instances", table))), nil
}

// instanceLink renders a link to the page of an instance.
func instanceLink(w schema.WorkflowRef, shown string) html {
	return h(`<a href="%">%</a>`, esc("/workflows?"+instanceQuery(w).Encode()), code(shown))
}

func instanceQuery(w schema.WorkflowRef) url.Values {
	q := url.Values{"app": {w.App}, "id": {w.ID}}
	if w.Namespace != "" {
		q.Set("namespace", w.Namespace)
	}
	return q
}

func workflowBadge(status string) html {
	switch status {
	case "COMPLETED":
		return badge(levelOK, status)
	case "FAILED", "STALLED":
		return badge(levelFail, status)
	case "SUSPENDED", "TERMINATED", "CANCELED":
		return badge(levelWarn, status)
	default:
		return badge("neutral", status)
	}
}

// workflow shows one instance over time. If payloads is true, the result contains the payloads, and workflow writes an
// audit log line.
func (r *request) workflow(ctx context.Context, ref schema.WorkflowRef, payloads bool) html {
	d, err := r.console.config.Workflows.ShowWorkflow(ctx, ref, payloads)
	if payloads {
		r.audit(ctx, "read payloads of a workflow", "app", ref.App, "instance", ref.ID, "error", textOrEmpty(err))
	}
	title := "Instance " + ref.ID
	if err != nil {
		return card("instance", title, failure(textOf(err)))
	}
	now := r.console.config.Now()
	list := []html{pair("Application", d.App), pair("Workflow", d.Name), pairOf("Status", workflowBadge(d.Status)),
		pair("Created", moment(d.Created, now)), pair("Ended", moment(d.Completed, now)),
		pair("Turns", strconv.Itoa(d.Turns)), pair("Connected workers", strconv.Itoa(d.Workers))}
	if d.Parent != "" {
		parent := d.WorkflowRef
		if parent.ID = d.Parent; d.ParentApp != "" {
			parent.App = d.ParentApp
		}
		list = append(list, pairOf("Parent", instanceLink(parent, d.Parent)))
	}
	if !d.Scheduled.IsZero() {
		list = append(list, pair("Start time", moment(d.Scheduled, now)))
	}
	if f := failureWords(d.Failure); f != "" {
		list = append(list, pair("Failure", f))
	}
	body := pairs(list...)
	if d.Workers == 0 && d.Completed.IsZero() {
		body += failure("No worker of " + d.App + " is connected, so the instance waits.")
	}
	return card("instance", title, body+stepPicture(&d, now)+r.payloads(&d, payloads))
}

// payloads shows input, output and custom status, or the button that shows them.
func (r *request) payloads(d *schema.WorkflowDetail, shown bool) html {
	q := instanceQuery(d.WorkflowRef)
	if !shown {
		q.Set("payloads", "true")
		return h(`<p><a class="button" href="%">Show payloads</a></p>`, esc("/workflows?"+q.Encode())) +
			dim("The log of the node will say that they were read.")
	}
	var parts []html
	for _, p := range []struct {
		name string
		text *string
	}{{"Input", d.Input}, {"Output", d.Output}, {"Custom status", d.Custom}} {
		if p.text != nil {
			parts = append(parts, h(`<h3>%</h3><pre class="value" tabindex="0"><code>%</code></pre>`, esc(p.name),
				esc(*p.text)))
		}
	}
	if len(parts) == 0 {
		return dim("The instance has no payloads.")
	}
	return joined(parts)
}

func failureWords(f *schema.WorkflowFailure) string {
	if f == nil {
		return ""
	}
	return strings.Trim(f.Type+": "+f.Message, ": ")
}

// stepPicture draws the steps of an instance on one axis of time, one below the other.
func stepPicture(d *schema.WorkflowDetail, now time.Time) html {
	end := d.Completed
	if end.IsZero() {
		end = now
	}
	for i := range d.Steps {
		if d.Steps[i].End.After(end) {
			end = d.Steps[i].End
		}
	}
	whole := max(end.Sub(d.Created), time.Millisecond)
	var rows []html
	for i := range d.Steps {
		if i == maxRows {
			break
		}
		s := &d.Steps[i]
		name := s.Name
		if s.Attempt > 1 {
			name += " (attempt " + strconv.Itoa(s.Attempt) + ")"
		}
		var about []html
		if s.Child != "" {
			child := schema.WorkflowRef{App: d.App, Namespace: d.Namespace, ID: s.Child}
			if s.App != "" {
				child.App = s.App
			}
			about = append(about, instanceLink(child, s.Child)+" ")
		}
		if f := failureWords(s.Failure); f != "" {
			about = append(about, esc(f))
		}
		if s.Outcome == "" && !s.Due.IsZero() {
			about = append(about, esc("due "+stamp(s.Due, now)))
		}
		outcome, level := stepOutcome(s)
		rows = append(rows, row(esc(s.Kind), text(name), stepBar(s, level, d.Created, end, whole),
			badge(level, outcome), esc(seconds(stepTime(s, end).Seconds())), joined(about)))
	}
	note := "The bars begin with the creation of the instance and end after " + seconds(whole.Seconds()) + "."
	if d.MoreSteps || len(d.Steps) > maxRows {
		note += " There are more steps: quorate workflows history shows them."
	}
	return h("<h3>Steps</h3>%", grid("Steps", "Step|Name|Time|Outcome|Took|Details", rows)) + dim(note)
}

// stepTime returns how long a step took. For a step that has not ended, it returns the time from the beginning of the
// step until end.
func stepTime(s *schema.WorkflowStep, end time.Time) time.Duration {
	if !s.End.IsZero() {
		end = s.End
	}
	return max(end.Sub(s.Begin), 0)
}

func stepOutcome(s *schema.WorkflowStep) (word, level string) {
	switch s.Outcome {
	case "":
		if s.Kind == schema.StepStalled {
			return "goes on", levelFail
		}
		return "goes on", "neutral"
	case schema.StepFailed:
		return s.Outcome, levelFail
	case schema.StepTimedOut, schema.StepCanceled:
		return s.Outcome, levelWarn
	}
	return s.Outcome, levelOK
}

// stepBar renders the bar of a step on an axis of 1000 units. Every bar is wide enough to be visible.
func stepBar(s *schema.WorkflowStep, level string, begin, end time.Time, whole time.Duration) html {
	const axis, least = 1000.0, 4.0
	at := axis * float64(max(s.Begin.Sub(begin), 0)) / float64(whole)
	width := max(least, axis*float64(stepTime(s, end))/float64(whole))
	at = max(0, min(at, axis-width))
	text := s.Kind + " " + s.Name + " from +" + seconds(s.Begin.Sub(begin).Seconds())
	if s.End.IsZero() {
		text += " on"
	} else {
		text += " to +" + seconds(s.End.Sub(begin).Seconds())
	}
	return h(`<svg class="span" viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label="%">`+
		`<line x1="0" y1="15.5" x2="1000" y2="15.5"/><rect class="% %" x="%" y="2" width="%" height="11">`+
		`<title>%</title></rect></svg>`, esc(text), esc(level), esc(s.Kind), coordinate(at), coordinate(width),
		esc(text))
}
