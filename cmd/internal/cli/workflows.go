package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) workflowsCommand() *cobra.Command {
	c := &cobra.Command{Use: "workflows", Short: "Show workflows, and steer them", Args: cobra.ArbitraryArgs,
		Long: "Show the instances of workflows of all applications and their histories, start and change them.",
		RunE: command.Group}
	c.AddCommand(m.workflowsListCommand(), m.workflowsShowCommand(), m.workflowsHistoryCommand(),
		m.workflowsStartCommand(), m.workflowsRaiseCommand(),
		m.workflowsPauseCommand(schema.WorkflowPause, "Pause an instance",
			"Pause an instance: activities that run go on, and their results wait. The status becomes SUSPENDED."),
		m.workflowsPauseCommand(schema.WorkflowResume, "Let a paused instance go on",
			"Let a paused instance go on."),
		m.workflowsTerminateCommand(), m.workflowsPurgeCommand(), m.workflowsRerunCommand())
	return c
}

// workflowRows is the maximum number of instances or events that the node returns for one request.
const workflowRows = 1000

func (m *Main) workflowsListCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	var app, namespace, name, prefix, after string
	var status []string
	var older, newer time.Duration
	limit := 100
	c := &cobra.Command{Use: "list [flags]", Short: "Show instances of workflows", Args: cobra.NoArgs,
		Long: "Show instances of workflows, by application and time of creation.",
		Example: "  quorate workflows list --app shop --status running --older-than 24h\n" +
			"  quorate workflows list --status failed,stalled --json"}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if limit < 1 || limit > workflowRows {
			return command.Usagef("--limit %d is no number from 1 to %d", limit, workflowRows)
		}
		query := url.Values{"limit": {strconv.Itoa(limit)}, "status": status}
		for name, value := range map[string]string{"app": app, "namespace": namespace, "name": name,
			"prefix": prefix, "after": after} {
			if value != "" {
				query.Set(name, value)
			}
		}
		for name, age := range map[string]time.Duration{"before": older, "since": newer} {
			switch {
			case age < 0:
				return command.Usagef("an age is not negative, such as 24h")
			case age > 0:
				query.Set(name, time.Now().Add(-age).UTC().Format(time.RFC3339Nano))
			}
		}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var page schema.WorkflowPage
			if err := a.Get(ctx, adminapi.WorkflowsPath+"?"+query.Encode(), &page); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, page)
			}
			return m.printWorkflows(&page)
		})
	}
	f := c.Flags()
	f.StringVar(&app, "app", "", "only the instances of this application")
	f.StringVar(&namespace, "namespace", "", "only the instances of this namespace")
	f.StringVar(&name, "name", "", "only instances of the workflow with this name")
	f.StringVar(&prefix, "prefix", "", "only instances whose ids begin with this text")
	f.StringSliceVar(&status, "status", nil, "only instances with this status, such as running, failed or stalled; "+
		"may be repeated")
	f.DurationVar(&older, "older-than", 0, "only instances that were created before this time ago, such as 24h")
	f.DurationVar(&newer, "newer-than", 0, "only instances that were created since this time ago")
	f.IntVar(&limit, "limit", limit, "most instances to show, at most "+strconv.Itoa(workflowRows))
	f.StringVar(&after, "after", "", "show the instances after this `token`, which the previous list has printed")
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) printWorkflows(page *schema.WorkflowPage) error {
	rows := [][]string{{"APP", "INSTANCE", "WORKFLOW", "STATUS", "CREATED", "UPDATED", "PARENT"}}
	for i := range page.Instances {
		w := &page.Instances[i]
		rows = append(rows, []string{w.App, command.Printable(w.ID), command.Dash(command.Printable(w.Name)), w.Status,
			w.Created.Format(time.RFC3339), w.Updated.Format(time.RFC3339),
			command.Dash(command.Printable(w.Parent))})
	}
	if err := command.Table(m.Stdout, rows); err != nil {
		return err
	}
	var err error
	switch {
	case page.Next != "":
		_, err = fmt.Fprintf(m.Stdout, "There are more instances. Add --after %s to show them.\n", page.Next)
	case page.Note != "":
		_, err = fmt.Fprintln(m.Stderr, "Note: "+page.Note)
	}
	return err
}

// oneWorkflow completes c, a command for one workflow instance. The first argument of c is the application, and the
// second is the instance. The action of c calls run with this instance.
func (m *Main) oneWorkflow(c *cobra.Command, run func(ctx context.Context, a *command.AdminClient,
	r schema.WorkflowRef, asJSON bool) error) *cobra.Command {
	set, out := settings.New(), command.Output{}
	namespace := ""
	c.RunE = func(c *cobra.Command, args []string) error {
		r := schema.WorkflowRef{App: args[0], ID: args[1], Namespace: namespace}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			return run(ctx, a, r, asJSON)
		})
	}
	bindNamespace(c, &namespace)
	command.BindAdmin(c, set, &out)
	return c
}

// workflowQuery returns the query that names an instance.
func workflowQuery(r schema.WorkflowRef, payloads bool) url.Values {
	q := url.Values{"app": {r.App}, "id": {r.ID}}
	if r.Namespace != "" {
		q.Set("namespace", r.Namespace)
	}
	if payloads {
		q.Set("payloads", "true")
	}
	return q
}

const payloadsUsage = "show inputs, outputs and other data of the application too; the node logs that"

func (m *Main) workflowsShowCommand() *cobra.Command {
	payloads := false
	c := m.oneWorkflow(&cobra.Command{Use: "show app instance [flags]", Short: "Show one instance and its steps",
		Args: cobra.ExactArgs(2),
		Long: "Show one instance of a workflow: its status, its activities with their attempts, its timers, what it\n" +
			"waits for, and its children. A workflow that continues as new has the steps since then.",
		Example: "  quorate workflows show shop order-7"},
		func(ctx context.Context, a *command.AdminClient, r schema.WorkflowRef, asJSON bool) error {
			var d schema.WorkflowDetail
			if err := a.Get(ctx, adminapi.WorkflowPath+"?"+workflowQuery(r, payloads).Encode(), &d); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, d)
			}
			return m.printWorkflow(&d)
		})
	c.Flags().BoolVar(&payloads, "payloads", false, payloadsUsage)
	return c
}

// timeText formats a time for a table.
func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}

func (m *Main) printWorkflow(d *schema.WorkflowDetail) error {
	rows := [][]string{{"Instance", command.Printable(d.ID) + " of application " + d.App},
		{"Workflow", command.Printable(d.Name)}, {"Status", d.Status}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, command.Printable(value)})
		}
	}
	add("Version", d.Version)
	add("Parent", d.Parent)
	add("Start time", timeText(d.Scheduled))
	add("Created", timeText(d.Created))
	add("Updated", timeText(d.Updated))
	add("Completed", timeText(d.Completed))
	add("Failure", failureText(d.Failure))
	for _, p := range []struct {
		name string
		text *string
	}{{"Input", d.Input}, {"Output", d.Output}, {"Custom status", d.Custom}} {
		if p.text != nil {
			add(p.name, oneLine(*p.text))
		}
	}
	add("Tags", pairsText(d.Tags))
	add("Turns", strconv.Itoa(d.Turns))
	if d.Completed.IsZero() {
		workers := command.Count(d.Workers, "connected worker")
		if d.Workers == 0 {
			workers = "none is connected, so the instance waits"
		}
		add("Workers", workers)
	}
	if err := command.Table(m.Stdout, rows); err != nil {
		return err
	}
	steps := [][]string{{"EVENT", "BEGAN", "TOOK", "STEP", "NAME", "ATTEMPT", "OUTCOME", "DETAILS"}}
	for i := range d.Steps {
		steps = append(steps, stepRow(&d.Steps[i], d.Created))
	}
	if _, err := fmt.Fprintln(m.Stdout); err != nil {
		return err
	}
	if err := command.Table(m.Stdout, steps); err != nil {
		return err
	}
	if d.MoreSteps {
		_, err := fmt.Fprintf(m.Stdout, "The steps of the first %d events are shown. workflows history shows the "+
			"others.\n", d.Events)
		return err
	}
	return nil
}

func failureText(f *schema.WorkflowFailure) string {
	if f == nil {
		return ""
	}
	return strings.Trim(f.Type+": "+f.Message, ": ")
}

// stepRow returns the table row of a step. The parameter created is the time at which the instance was created. The row
// shows how long after this time the step began, for example +1.5s.
func stepRow(s *schema.WorkflowStep, created time.Time) []string {
	took := "-"
	if !s.End.IsZero() {
		took = s.End.Sub(s.Begin).Round(time.Millisecond).String()
	}
	var details []string
	if s.Child != "" {
		details = append(details, "instance "+command.Printable(s.Child))
	}
	if s.App != "" {
		details = append(details, "of application "+command.Printable(s.App))
	}
	if s.Outcome == "" && !s.Due.IsZero() {
		details = append(details, "due "+timeText(s.Due))
	}
	if f := failureText(s.Failure); f != "" {
		details = append(details, oneLine(f))
	}
	attempt := ""
	if s.Attempt > 0 {
		attempt = strconv.Itoa(s.Attempt)
	}
	return []string{strconv.Itoa(int(s.EventID)), "+" + s.Begin.Sub(created).Round(time.Millisecond).String(), took,
		s.Kind, command.Dash(oneLine(s.Name)), command.Dash(attempt), cmp.Or(s.Outcome, "goes on"),
		command.Dash(strings.Join(details, ", "))}
}

func (m *Main) workflowsHistoryCommand() *cobra.Command {
	payloads, first, limit := false, 0, workflowRows
	c := m.oneWorkflow(&cobra.Command{Use: "history app instance [flags]", Short: "Show the history of one instance",
		Args: cobra.ExactArgs(2),
		Long: "Show the events of one instance of a workflow, the oldest first. ID is the number that rerun takes;\n" +
			"events of the engine have -1. OF is the id of the event that an event answers.",
		Example: "  quorate workflows history shop order-7 --json"},
		func(ctx context.Context, a *command.AdminClient, r schema.WorkflowRef, asJSON bool) error {
			h, err := readHistory(ctx, a, workflowQuery(r, payloads), first, limit)
			if err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, h)
			}
			return m.printHistory(&h, payloads)
		})
	c.Flags().BoolVar(&payloads, "payloads", false, payloadsUsage)
	c.Flags().IntVar(&first, "first", 0, "position of the first event to show, from 0")
	c.Flags().IntVar(&limit, "limit", limit, "most events to show, at most 100000")
	return c
}

// readHistory reads a part of a history with as many requests as necessary.
func readHistory(ctx context.Context, a *command.AdminClient, q url.Values, first, limit int) (h schema.WorkflowHistory,
	err error) {
	if first < 0 || limit < 1 || limit > 100_000 {
		return h, command.Usagef("--first is at least 0, and --limit a number from 1 to 100000")
	}
	h.Events = []schema.WorkflowEvent{}
	for h.More = true; h.More && len(h.Events) < limit; {
		q.Set("first", strconv.Itoa(first+len(h.Events)))
		q.Set("limit", strconv.Itoa(min(limit-len(h.Events), workflowRows)))
		var part schema.WorkflowHistory
		if err := a.Get(ctx, adminapi.WorkflowHistoryPath+"?"+q.Encode(), &part); err != nil {
			return h, err
		}
		if h.More = part.More; len(part.Events) == 0 {
			break
		}
		h.Events = append(h.Events, part.Events...)
	}
	return h, nil
}

func (m *Main) printHistory(h *schema.WorkflowHistory, payloads bool) error {
	head := []string{"#", "TIME", "EVENT", "ID", "OF", "NAME", "DETAILS"}
	if payloads {
		head = append(head, "PAYLOAD")
	}
	rows := [][]string{head}
	for i := range h.Events {
		e := &h.Events[i]
		of, details := "", e.Detail
		if e.Ref != nil {
			of = strconv.Itoa(int(*e.Ref))
		}
		if f := failureText(e.Failure); f != "" {
			details = strings.TrimPrefix(details+": "+f, ": ")
		}
		one := []string{strconv.Itoa(e.Position), e.Time.Format("2006-01-02T15:04:05.000Z"), e.Type,
			strconv.Itoa(int(e.ID)), command.Dash(of), command.Dash(oneLine(e.Name)), command.Dash(oneLine(details))}
		if payloads {
			text := ""
			if e.Payload != nil {
				text = oneLine(*e.Payload)
			}
			one = append(one, command.Dash(text))
		}
		rows = append(rows, one)
	}
	if err := command.Table(m.Stdout, rows); err != nil {
		return err
	}
	if h.More {
		next := 0
		if n := len(h.Events); n > 0 {
			next = h.Events[n-1].Position + 1
		}
		_, err := fmt.Fprintf(m.Stdout, "There are more events. Add --first %d to show them.\n", next)
		return err
	}
	return nil
}
