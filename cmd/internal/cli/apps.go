package cli

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
)

func (m *Main) appsCommand() *cobra.Command {
	return m.adminCommand("apps [flags]", "Show the applications of the cluster, as a node knows them",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			var apps []api.AppInstance
			if err := a.get(ctx, adminapi.AppsPath, &apps); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, apps)
			}
			return printApps(m.Stdout, apps)
		})
}

func printApps(w io.Writer, apps []api.AppInstance) error {
	rows := [][]string{{"APPLICATION", "NAMESPACE", "NODE", "PROTOCOL", "STATE", "LOAD", "CALLS FROM HERE"}}
	for _, a := range apps {
		node := a.Node
		if a.Self {
			node += " (this node)"
		}
		rows = append(rows, []string{a.App, dash(a.Namespace), node, dash(a.Protocol), appState(a),
			strconv.Itoa(a.Load), strconv.FormatInt(a.Calls, 10)})
	}
	return table(w, rows)
}

// appState returns whether an instance is called, and the reason if not.
func appState(a api.AppInstance) string {
	switch a.State {
	case "uncalled":
		return "not called: no --app-port"
	case "demoted":
		return "demoted: not reachable"
	default:
		return a.State
	}
}
