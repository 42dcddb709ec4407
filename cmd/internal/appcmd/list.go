package appcmd

import (
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/hostshare"
)

// listed is one application in the output of quorate list.
type listed struct {
	App     string    `json:"appId" yaml:"appId"`
	Node    string    `json:"nodeId,omitempty" yaml:"nodeId,omitempty"`
	HTTP    int       `json:"httpPort" yaml:"httpPort"`
	GRPC    int       `json:"grpcPort" yaml:"grpcPort"`
	AppPort int       `json:"appPort" yaml:"appPort"`
	Command string    `json:"command" yaml:"command"`
	Created time.Time `json:"created" yaml:"created"`
	PID     int       `json:"pid" yaml:"pid"`
	Log     string    `json:"log,omitempty" yaml:"log,omitempty"`
}

func (m *commands) listCommand() *cobra.Command {
	set, dapr, form, asJSON, all := settings.New(), daprFlags{}, "table", false, false
	c := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the applications that quorate run has started on this machine",
		Long: "List the applications of this user whose nodes run on this machine, as dapr list does.\n" +
			"quorate apps lists the applications of the whole cluster.",
		Example: "  quorate list\n  quorate list -o json",
		Args:    cobra.NoArgs,
	}
	c.Flags().StringVarP(&form, "output", "o", form, "output `form`: table, text (the same), json or yaml")
	c.Flags().BoolVar(&asJSON, "json", false, "the same as -o json")
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "refused: it exists in Dapr's command")
	c.Flags().Lookup("all-namespaces").Hidden = true
	set.BindOnly(c.Flags(), "config-file")
	dapr.bind(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		dapr.kubernetes = dapr.kubernetes || all
		if err := dapr.check("on Kubernetes, use: kubectl exec POD -c quorate -- /quorate apps"); err != nil {
			return err
		}
		notes, err := m.runs(c, set)
		if err != nil {
			return err
		}
		out := []listed{}
		for _, n := range notes {
			for _, app := range n.Apps {
				out = append(out, listed{App: app, Node: n.Node, HTTP: portOf(n.Run.HTTP), GRPC: portOf(n.Run.GRPC),
					AppPort: n.Run.AppPort, Command: n.Run.Command, Created: n.Run.Started, PID: n.PID, Log: n.Run.Log})
			}
		}
		switch {
		case asJSON || form == "json":
			return command.WriteJSON(m.Stdout, out)
		case form == "yaml":
			return yaml.NewEncoder(m.Stdout).Encode(out)
		case form == "table" || form == "text":
			return m.table(out)
		}
		return command.Usagef("the output form %q is unknown (give table, json or yaml)", form)
	}
	return c
}

func (m *commands) table(apps []listed) error {
	if len(apps) == 0 {
		_, err := m.Stdout.Write([]byte("No application of this user runs on this machine. Start one with: " +
			"quorate run --app-id NAME -- COMMAND\n"))
		return err
	}
	port := func(n int) string {
		if n == 0 {
			return "-"
		}
		return strconv.Itoa(n)
	}
	rows := [][]string{{"APP ID", "NODE", "HTTP PORT", "GRPC PORT", "APP PORT", "AGE", "PID", "COMMAND"}}
	for _, a := range apps {
		rows = append(rows, []string{command.Printable(a.App), command.Dash(command.Printable(a.Node)), port(a.HTTP),
			port(a.GRPC), port(a.AppPort), time.Since(a.Created).Truncate(time.Second).String(), strconv.Itoa(a.PID),
			command.Dash(command.Printable(a.Command))})
	}
	return command.Table(m.Stdout, rows)
}

// runs returns the records of the running quorate run processes of this user.
func (m *commands) runs(c *cobra.Command, set *settings.Set) ([]hostshare.Note, error) {
	config, err := m.Resolve(set, c.Flags(), nil)
	if err != nil {
		return nil, err
	}
	return list(config.Data.RuntimeDir)
}

// portOf returns the port of an address, or 0 if the address has none.
func portOf(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return port
}
