package clustercmd

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
)

func (m *commands) appsCommand() *cobra.Command {
	return m.AdminCommand("apps [flags]", "Show the applications of the cluster, as a node knows them",
		func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var apps []schema.AppInstance
			if err := a.Get(ctx, adminapi.AppsPath, &apps); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, apps)
			}
			return printApps(m.Stdout, apps)
		})
}

func printApps(w io.Writer, apps []schema.AppInstance) error {
	rows := [][]string{{"APPLICATION", "NAMESPACE", "NODE", "PROTOCOL", "STATE", "LOAD", "CALLS FROM HERE"}}
	for _, a := range apps {
		node := a.Node
		if a.Self {
			node += " (this node)"
		}
		rows = append(rows, []string{a.App, command.Dash(a.Namespace), node, command.Dash(a.Protocol), appState(a),
			strconv.Itoa(a.Load), strconv.FormatInt(a.Calls, 10)})
	}
	return command.Table(w, rows)
}

// appState returns the text that shows the state of an application instance. For some states, the text adds the reason.
func appState(a schema.AppInstance) string {
	switch a.State {
	case "uncalled":
		return "not called: no --app-port"
	case "demoted":
		return "demoted: not reachable"
	default:
		return a.State
	}
}
