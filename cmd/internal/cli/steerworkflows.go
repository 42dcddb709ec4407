package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// steer completes the command c, which changes workflow instances of the application in its first argument. The
// function ask makes the change. It returns a result for JSON output, and a text for other output. The context of ask
// has no time limit, because ask may wait for an answer of the user.
func (m *Main) steer(c *cobra.Command, ask func(ctx context.Context, a *command.AdminClient, namespace string,
	args []string) (any, string, error)) *cobra.Command {
	set, out := settings.New(), command.Output{}
	namespace := ""
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		result, text, err := ask(c.Context(), &command.AdminClient{DataDir: dir}, namespace, args)
		switch {
		case err != nil:
			return err
		case out.JSON():
			return command.WriteJSON(m.Stdout, result)
		}
		if changed, ok := result.(schema.WorkflowChanged); ok && changed.Note != "" {
			defer fmt.Fprintln(m.Stderr, "Note: "+changed.Note)
		}
		_, err = fmt.Fprintln(m.Stdout, text)
		return err
	}
	bindNamespace(c, &namespace)
	command.BindAdmin(c, set, &out)
	return c
}

func bindNamespace(c *cobra.Command, namespace *string) {
	c.Flags().StringVar(namespace, "namespace", "", "namespace of the application; needed if applications of several "+
		"namespaces have its id")
}

// inputText returns the JSON text that a flag gives. The parameter text is the value of the flag. If it is "-", the
// result is the text on standard input. If the flag was not given, the result is nil.
func (m *Main) inputText(c *cobra.Command, flag, text string) (*string, error) {
	switch {
	case !c.Flags().Changed(flag):
		return nil, nil
	case text != "-":
		return &text, nil
	}
	read, err := io.ReadAll(m.Stdin)
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "cli.workflows", Msg: "the standard input cannot be read",
			Err: err}
	}
	text = string(read)
	return &text, nil
}

func changedText(r *schema.WorkflowChanged) string {
	text := "Workflow instance " + command.Printable(r.ID) + " of " + r.App
	if r.Status != "" {
		text += " is " + r.Status
	}
	return text + "."
}

func (m *Main) workflowsStartCommand() *cobra.Command {
	var id, input, at string
	c := &cobra.Command{Use: "start app workflow [flags]", Short: "Start an instance of a workflow",
		Args: cobra.ExactArgs(2),
		Long: "Start an instance of a workflow. The command returns when the instance is stored. It runs as soon\n" +
			"as a worker of the application is connected.",
		Example: "  quorate workflows start shop order --id order-7 --input '{\"item\": 7}'\n" +
			"  quorate workflows start shop order --start-time 2027-01-01T00:00:00Z --input - < order.json"}
	m.steer(c, func(ctx context.Context, a *command.AdminClient, namespace string, args []string) (any, string, error) {
		r := schema.WorkflowStart{WorkflowRef: schema.WorkflowRef{App: args[0], Namespace: namespace, ID: id},
			Name: args[1]}
		var err error
		if at != "" {
			if r.At, err = time.Parse(time.RFC3339, at); err != nil {
				return nil, "", command.Usagef("--start-time %q is not in the form of RFC 3339, such as "+
					"2027-01-01T00:00:00Z", at)
			}
		}
		if r.Input, err = m.inputText(c, "input", input); err != nil {
			return nil, "", err
		}
		var started schema.WorkflowChanged
		err = post(ctx, a, adminapi.WorkflowStartPath, r, &started)
		return started, changedText(&started), err
	})
	c.Flags().StringVar(&id, "id", "", "`id` of the instance: letters, digits, - and _ (default a random one)")
	c.Flags().StringVar(&input, "input", "", "input of the workflow as `JSON`; - reads standard input")
	c.Flags().StringVar(&at, "start-time", "", "when the instance starts, in the form of RFC 3339 (default at once)")
	return c
}

// workflowsChangeCommand completes the command c, which changes one workflow instance. If yes points to false, the user
// must confirm the change by typing the id of the instance. If yes is nil or points to true, the command needs no
// confirmation.
func (m *Main) workflowsChangeCommand(c *cobra.Command, yes *bool,
	fill func(r *schema.WorkflowChange, args []string) error) *cobra.Command {
	return m.steer(c, func(ctx context.Context, a *command.AdminClient, namespace string,
		args []string) (any, string, error) {
		r := schema.WorkflowChange{WorkflowRef: schema.WorkflowRef{App: args[0], Namespace: namespace, ID: args[1]}}
		if err := fill(&r, args); err != nil {
			return nil, "", err
		}
		if yes != nil && !*yes {
			if err := m.Confirm(args[1], "the id of the instance"); err != nil {
				return nil, "", err
			}
		}
		var changed schema.WorkflowChanged
		err := post(ctx, a, adminapi.WorkflowChangePath, r, &changed)
		return changed, changedText(&changed), err
	})
}

func (m *Main) workflowsRaiseCommand() *cobra.Command {
	early, data := false, ""
	c := &cobra.Command{Use: "raise app instance event [flags]", Short: "Send an external event to an instance",
		Args: cobra.ExactArgs(3),
		Long: "Send an external event to an instance. If the instance waits for other events only, the command is\n" +
			"refused, because an event cannot be taken back; --early stores it until the workflow waits for it.",
		Example: "  quorate workflows raise shop order-7 approve --data '{\"by\": \"ann\"}'"}
	m.workflowsChangeCommand(c, nil, func(r *schema.WorkflowChange, args []string) (err error) {
		r.Action, r.Event, r.Early = schema.WorkflowRaise, args[2], early
		r.Data, err = m.inputText(c, "data", data)
		return err
	})
	c.Flags().StringVar(&data, "data", "", "data of the event as `JSON`; - reads standard input")
	c.Flags().BoolVar(&early, "early", false, "store the event also if the instance waits for other events only")
	return c
}

// workflowsPauseCommand returns the command pause or resume.
func (m *Main) workflowsPauseCommand(action, short, long string) *cobra.Command {
	reason := ""
	c := &cobra.Command{Use: action + " app instance [flags]", Short: short, Long: long, Args: cobra.ExactArgs(2),
		Example: "  quorate workflows " + action + " shop order-7 --reason maintenance"}
	m.workflowsChangeCommand(c, nil, func(r *schema.WorkflowChange, _ []string) error {
		r.Action, r.Reason = action, reason
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "text for the history")
	return c
}

func (m *Main) workflowsTerminateCommand() *cobra.Command {
	yes, keep, result := false, false, ""
	c := &cobra.Command{Use: "terminate app instance [flags]", Short: "End an instance and its children",
		Args: cobra.ExactArgs(2),
		Long: "End an instance and its children, also if no worker is connected. Activities that run are not\n" +
			"interrupted; their results are ignored.",
		Example: "  quorate workflows terminate shop order-7 --result '\"canceled\"'"}
	m.workflowsChangeCommand(c, &yes, func(r *schema.WorkflowChange, _ []string) (err error) {
		r.Action, r.KeepChildren = schema.WorkflowTerminate, keep
		r.Data, err = m.inputText(c, "result", result)
		return err
	})
	c.Flags().StringVar(&result, "result", "", "result of the instance as `JSON`")
	c.Flags().BoolVar(&keep, "keep-children", false, "let the children go on")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for a confirmation")
	return c
}

func (m *Main) workflowsPurgeCommand() *cobra.Command {
	var r schema.WorkflowPurge
	var older time.Duration
	yes, all := false, false
	c := &cobra.Command{Use: "purge app [instance] [flags]", Short: "Remove instances that have ended",
		Args: cobra.RangeArgs(1, 2),
		Long: "Remove an instance that has ended, with its children; or those of an application that the flags\n" +
			"select. Their histories are lost. --force removes one instance that runs.",
		Example: "  quorate workflows purge shop order-7\n" +
			"  quorate workflows purge shop --status completed --older-than 720h"}
	m.steer(c, func(ctx context.Context, a *command.AdminClient, namespace string, args []string) (any, string, error) {
		if err := command.RefuseEmpty(c, "name", "prefix", "status"); err != nil {
			return nil, "", err
		}
		r.App, r.Namespace = args[0], namespace
		selects := r.Name != "" || r.Prefix != "" || len(r.Statuses) > 0 || older != 0
		word, what := r.App, "the id of the application"
		switch {
		case len(args) == 2 && (selects || all):
			return nil, "", command.Usagef("name one instance, or select some with flags, not both")
		case len(args) == 2 && args[1] == "":
			return nil, "", command.Usagef("the id of the instance is empty")
		case len(args) == 2:
			r.ID, word, what = args[1], args[1], "the id of the instance"
		case r.Force:
			return nil, "", command.Usagef("--force needs the id of an instance")
		case older < 0:
			return nil, "", command.Usagef("an age is not negative, such as 24h")
		case !selects && !all:
			return nil, "", command.Usagef("nothing is selected (name an instance, add --status, --name, --prefix or " +
				"--older-than, or --all for every instance that has ended)")
		}
		if older > 0 {
			r.Before = time.Now().Add(-older)
		}
		if !yes {
			if err := m.Confirm(word, what); err != nil {
				return nil, "", err
			}
		}
		total := schema.WorkflowsPurged{More: true}
		for total.More {
			var part schema.WorkflowsPurged
			if err := post(ctx, a, adminapi.WorkflowPurgePath, r, &part); err != nil {
				if total.Removed > 0 {
					fmt.Fprintln(m.Stderr, purgedText(total.Removed))
				}
				return nil, "", err
			}
			total.Removed, total.More = total.Removed+part.Removed, part.More
		}
		return total, purgedText(total.Removed), nil
	})
	f := c.Flags()
	f.StringVar(&r.Name, "name", "", "instances of the workflow with this name")
	f.StringVar(&r.Prefix, "prefix", "", "instances whose ids begin with this text")
	f.StringSliceVar(&r.Statuses, "status", nil, "instances with this status, such as completed; may be repeated")
	f.DurationVar(&older, "older-than", 0, "instances that were created before this time ago, such as 720h")
	f.BoolVar(&all, "all", false, "every instance of the application that has ended")
	f.BoolVar(&r.Force, "force", false, "remove the instance also if it runs")
	f.BoolVar(&yes, "yes", false, "do not ask for a confirmation")
	return c
}

// post sends one request, with the time limit command.AdminTime.
func post(ctx context.Context, a *command.AdminClient, path string, body, result any) error {
	ctx, cancel := context.WithTimeout(ctx, command.AdminTime)
	defer cancel()
	return a.Post(ctx, path, body, result)
}

func purgedText(n int) string { return command.Count(n, "instance") + " removed." }

func (m *Main) workflowsRerunCommand() *cobra.Command {
	var id, input string
	c := &cobra.Command{Use: "rerun app instance event-id [flags]",
		Short: "Run an instance that has ended again, from an event on", Args: cobra.ExactArgs(3),
		Long: "Start a new instance with the history of one that has ended, up to an event, which runs again. The\n" +
			"event is an activity, a timer or a child; history shows its id. The old instance stays as it is.",
		Example: "  quorate workflows rerun shop order-7 3 --id order-7-again"}
	m.steer(c, func(ctx context.Context, a *command.AdminClient, namespace string, args []string) (any, string, error) {
		event, err := strconv.ParseUint(args[2], 10, 31)
		if err != nil {
			return nil, "", command.Usagef("%q is not the id of an event (history shows the ids)", args[2])
		}
		r := schema.WorkflowRerun{WorkflowRef: schema.WorkflowRef{App: args[0], Namespace: namespace, ID: args[1]},
			Event: uint32(event), NewID: id}
		if r.Input, err = m.inputText(c, "input", input); err != nil {
			return nil, "", err
		}
		var started schema.WorkflowChanged
		err = post(ctx, a, adminapi.WorkflowRerunPath, r, &started)
		return started, changedText(&started), err
	})
	c.Flags().StringVar(&id, "id", "", "`id` of the new instance: letters, digits, - and _ (default a random one)")
	c.Flags().StringVar(&input, "input", "", "input of the event instead of its own, as `JSON`; - reads standard input")
	return c
}
