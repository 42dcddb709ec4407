package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *Main) doctorCommand() *cobra.Command {
	set, out, other := settings.New(), command.Output{}, ""
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Diagnose a node and its environment",
		Long: "Diagnose a node. If a node runs on the data directory, it checks itself and, together with\n" +
			"every other node, ports in both directions, clocks, versions and settings. If none runs, the\n" +
			"command checks what a start with the same flags needs: disk, limits, ports, nodes to join.\n" +
			"The exit code is 1 if a check fails.",
		Example: "  quorate doctor\n  quorate doctor --data-dir ./n1 --join a.example,b.example --json",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		config, err := m.Resolve(set, c.Flags(), nil)
		if err != nil {
			return err
		}
		found, err := m.examine(c.Context(), config, other)
		if err != nil {
			return err
		}
		if out.JSON() {
			err = command.WriteJSON(m.Stdout, found)
		} else {
			err = printCheckup(m.Stdout, found)
		}
		if err == nil && found.Worst() == schema.CheckFail {
			err = fault.New(fault.Internal, "cli.doctor", "a check has failed")
		}
		return err
	}
	withSettings(c, set)
	out.Bind(c)
	command.BindNode(c, &other)
	return c
}

// examine runs the checks of quorate doctor and returns their results. If nodeID is not empty, the node with that id
// runs the checks. Otherwise the node in the data directory runs them. If no node runs there, this process runs them.
func (m *Main) examine(ctx context.Context, c node.Config, nodeID string) (schema.Checkup, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*command.AdminTime)
	defer cancel()
	dir, err := command.ChooseDir(ctx, c)
	if err != nil {
		return schema.Checkup{}, err
	}
	if nodeID != "" || dir != "" && command.Runs(ctx, dir) {
		var found schema.Checkup
		err := (&command.AdminClient{DataDir: dir, Node: nodeID}).Get(ctx, adminapi.DoctorPath, &found)
		return found, err
	}
	return node.Examine(ctx, c), nil
}

func printCheckup(w io.Writer, c schema.Checkup) error {
	rows := [][]string{{"CHECK", "ABOUT", "", "FOUND"}}
	for _, r := range c.Checks {
		text := r.Text
		if r.Fix != "" {
			text += " (" + r.Fix + ")"
		}
		rows = append(rows, []string{r.Check, command.Dash(r.About), strings.ToUpper(string(r.Level)), text})
	}
	return command.Table(w, rows)
}
