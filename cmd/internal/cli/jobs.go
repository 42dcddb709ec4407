package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) jobsCommand() *cobra.Command {
	c := &cobra.Command{Use: "jobs", Short: "Show jobs, run and delete them", Args: cobra.ArbitraryArgs,
		Long: "Show the jobs of all applications, run one now, or delete it.", RunE: command.Group}
	c.AddCommand(m.jobsListCommand(), m.jobsGetCommand(),
		m.jobsChangeCommand("run", "Make a job due now",
			"Make the present tick of a job due now. Its schedule goes on with the first tick after now.", false),
		m.jobsChangeCommand("delete", "Delete a job",
			"Delete a job. A call of the application that is under way is not interrupted.", true))
	return c
}

func (m *Main) jobsListCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	query := url.Values{}
	var app, namespace, prefix string
	c := &cobra.Command{Use: "list [flags]", Short: "Show jobs", Args: cobra.NoArgs,
		Example: "  quorate jobs list --app shop"}
	c.RunE = func(c *cobra.Command, _ []string) error {
		for name, value := range map[string]string{"app": app, "namespace": namespace, "name": prefix} {
			if value != "" {
				query.Set(name, value)
			}
		}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			if !asJSON {
				query.Set("brief", "true")
			}
			var list []schema.JobStatus
			if err := a.Get(ctx, adminapi.JobsPath+"?"+query.Encode(), &list); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, list)
			}
			rows := [][]string{{"APP", "JOB", "SCHEDULE", "NEXT", "TICKS", "ATTEMPTS", "WAITS FOR", "LAST ERROR"}}
			for i := range list {
				j := &list[i]
				rows = append(rows, []string{j.App, j.Name, command.Dash(j.Schedule), j.Next.Format(time.RFC3339),
					strconv.FormatUint(j.Ticks, 10), strconv.FormatUint(j.Attempts, 10), command.Dash(j.Waiting),
					command.Dash(j.Error)})
			}
			return command.Table(m.Stdout, rows)
		})
	}
	c.Flags().StringVar(&app, "app", "", "only the jobs of this application")
	c.Flags().StringVar(&namespace, "namespace", "", "only the jobs of this namespace")
	c.Flags().StringVar(&prefix, "prefix", "", "only jobs whose names begin with this text")
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) jobsGetCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	c := &cobra.Command{Use: "get app job [flags]", Short: "Show one job as JSON", Args: cobra.ExactArgs(2),
		Example: "  quorate jobs get shop nightly"}
	c.RunE = func(c *cobra.Command, args []string) error {
		query := url.Values{"app": {args[0]}, "name": {args[1]}, "exact": {"true"}}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, _ bool) error {
			var list []schema.JobStatus
			if err := a.Get(ctx, adminapi.JobsPath+"?"+query.Encode(), &list); err != nil {
				return err
			}
			if len(list) == 0 {
				return fmt.Errorf("application %s has no job %s (quorate jobs list shows the jobs)", args[0], args[1])
			}
			return command.WriteJSON(m.Stdout, list)
		})
	}
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) jobsChangeCommand(verb, short, long string, remove bool) *cobra.Command {
	set, out := settings.New(), command.Output{}
	var namespace string
	c := &cobra.Command{Use: verb + " app job [flags]", Short: short, Long: long, Args: cobra.ExactArgs(2),
		Example: "  quorate jobs " + verb + " shop nightly"}
	c.RunE = func(c *cobra.Command, args []string) error {
		r := schema.JobChange{App: args[0], Namespace: namespace, Name: args[1], Delete: remove}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var j schema.JobStatus
			if err := a.Post(ctx, adminapi.JobChangePath, r, &j); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, j)
			}
			what := "due now"
			if remove {
				what = "deleted"
			}
			_, err := fmt.Fprintf(m.Stdout, "Job %s of %s is %s.\n", j.Name, j.App, what)
			return err
		})
	}
	c.Flags().StringVar(&namespace, "namespace", "", "namespace of the application; needed if several have that job")
	command.BindAdmin(c, set, &out)
	return c
}
