package clustercmd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *commands) callsCommand() *cobra.Command {
	set, out, f, limit := settings.New(), command.Output{}, schema.CallFilter{}, 0
	c := &cobra.Command{
		Use:   "calls [flags]",
		Short: "Show API requests of a node as they end",
		Long: "Show the requests to the APIs of a node that end from now on: application, route, status, duration,\n" +
			"consistency and trace id, never keys or values. Health probes are left out. The node records calls\n" +
			"only while somebody looks. It uses the node of the data directory, by default this user's. Calls to\n" +
			"another node are shown there. Ctrl-C ends the command.",
		Example: "  quorate calls --failed\n  quorate calls --app orders --route state --least 20ms\n" +
			"  quorate calls --trace 4bf92f3577b34da6a3ce929d0e0e4736 --json",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case limit < 0:
			return command.Usagef("--limit %d is below 0", limit)
		case f.Least < 0:
			return command.Usagef("--least %s is below 0", f.Least)
		}
		f.Trace = strings.ToLower(f.Trace)
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		shown := 0
		a := &command.AdminClient{DataDir: dir}
		err = command.Lines(c.Context(), a, http.MethodGet, adminapi.CallsPath(&f), nil,
			func(l *schema.CallLine) json.RawMessage { return l.Error },
			func(l *schema.CallLine) error {
				if err := m.printCall(l, out.JSON()); err != nil || l.Call == nil {
					return err
				}
				if shown++; shown == limit {
					return command.ErrEnough
				}
				return nil
			})
		if c.Context().Err() != nil {
			return nil
		}
		return err
	}
	command.BindAdmin(c, set, &out)
	flags := c.Flags()
	flags.StringVar(&f.App, "app", "", "only calls of the API of this `application`")
	flags.StringVar(&f.Route, "route", "", "only calls whose route contains this `text`, for example state or POST")
	flags.StringVar(&f.Trace, "trace", "", "only calls with this trace `id`")
	flags.BoolVar(&f.Failed, "failed", false, "only failed calls")
	flags.DurationVar(&f.Least, "least", 0, "only calls that took at least this long, for example 20ms")
	flags.IntVarP(&limit, "limit", "n", 0, "end after so many calls; 0 = no limit")
	return c
}

// callColumns is the format of one line of quorate calls. Its columns are wide enough for most values.
const callColumns = "%-12s  %-14s  %-8s  %9s  %-12s  %-32s  %s\n"

// printCall prints one line of the stream. Calls go to standard output. The heading and notes about lost calls go to
// standard error, so that scripts do not read them.
func (m *commands) printCall(l *schema.CallLine, asJSON bool) error {
	switch {
	case l.Lost > 0:
		_, err := fmt.Fprintf(m.Stderr, "%d calls came too fast and are not shown: choose fewer with --app or "+
			"--route\n", l.Lost)
		return err
	case l.Call == nil && asJSON:
		return nil
	case l.Call == nil:
		_, err := fmt.Fprintf(m.Stderr, callColumns, "ENDED (UTC)", "APP", "STATUS", "TOOK", "CONSISTENCY", "TRACE",
			"ROUTE")
		return err
	case asJSON:
		return command.WriteJSONLine(m.Stdout, l.Call)
	}
	c := l.Call
	status := c.Protocol + " " + strconv.Itoa(c.Code)
	if c.Code == 0 && c.Failed {
		status = "aborted"
	}
	took := time.Duration(c.TookMS * float64(time.Millisecond)).Round(10 * time.Microsecond)
	app := command.Printable(command.Dash(c.App))
	_, err := fmt.Fprintf(m.Stdout, callColumns, c.At.UTC().Format("15:04:05.000"), app, status, took,
		command.Dash(c.Consistency), command.Dash(c.Trace), command.Printable(c.Route))
	return err
}
