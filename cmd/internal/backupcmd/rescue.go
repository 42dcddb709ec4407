package backupcmd

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *commands) rescueCommand() *cobra.Command {
	set, out, yes, dry := settings.New(), command.Output{}, false, false
	c := &cobra.Command{
		Use:   "rescue [flags]",
		Short: "Make a stopped server the only voter after a majority was permanently lost",
		Long: "Make the server of the data directory the only voter of its cluster. The server must be stopped.\n" +
			"Use it when a cluster has permanently lost a majority of its voters. Data that this server does\n" +
			"not have is lost. Rescue only one server: the survivor with the greatest LAST. The cluster then\n" +
			"refuses all its earlier servers. Empty their data directories, and they can join as\n" +
			"new servers. With --dry-run the command only shows what the directory holds.",
		Example: "  quorate rescue --data-dir /var/lib/quorate --dry-run\n  quorate rescue --data-dir /var/lib/quorate",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		config, err := m.Resolve(set, c.Flags(), nil)
		if err != nil {
			return err
		}
		if config.Data.Dir == "" {
			return command.Usagef("the data directory is unknown (name it with --data-dir)")
		}
		log := slog.New(slog.NewTextHandler(m.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
		report, err := node.Rescue(config.Data.Dir, log, func(r schema.RescueReport) (bool, error) {
			return m.agreeToRescue(r, yes, dry, out.JSON())
		})
		if err != nil {
			return err
		}
		if out.JSON() {
			return command.WriteJSON(m.Stdout, report)
		}
		if report.Rescued {
			_, err = fmt.Fprintf(m.Stdout, "%s is now the only voter, at cluster epoch %d. Start it with its usual "+
				"settings, then let servers\nwith empty data directories --join it.\n", report.Node, report.Epoch)
		}
		return err
	}
	command.BindAdmin(c, set, &out)
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what the directory holds")
	return c
}

// agreeToRescue reports whether a rescue may begin. Unless asJSON is true, it first prints the report r. It then
// returns the result of the first case that applies:
//
//   - dry is true: it returns false.
//   - The node is already the only voter: it returns fault.Conflict.
//   - yes is true: it returns true.
//   - Otherwise the user must confirm. If the user does not confirm, it returns an error.
func (m *commands) agreeToRescue(r schema.RescueReport, yes, dry, asJSON bool) (bool, error) {
	if !asJSON {
		if err := printRescue(m.Stdout, r); err != nil {
			return false, err
		}
	}
	if r.LeftBehind {
		fmt.Fprintf(m.Stderr, "The cluster was already rescued on another server. A rescue of %s makes a second "+
			"cluster with\nolder data. Move its data directory away instead, and start it again: it joins as a "+
			"new server.\n", r.Node)
	}
	switch {
	case dry:
		return false, nil
	case r.Alone:
		return false, &fault.Error{Code: fault.Conflict, Op: "cli.rescue",
			Msg: r.Node + " is already the only voter: there is nothing to rescue", Hint: "start it without a rescue"}
	case yes:
		return true, nil
	}
	fmt.Fprintf(m.Stderr, "Data that the other voters acknowledged and %s does not have will be lost. The other "+
		"voters\ncan never come back with their data. Make sure that none of them runs.\n", r.Node)
	return true, m.Confirm(r.Node, "the id of the node")
}

func printRescue(w io.Writer, r schema.RescueReport) error {
	state := "a member of its cluster"
	switch {
	case r.BrokenOff:
		state = "a rescue of it has not finished"
	case r.LeftBehind:
		state = "left behind by a rescue on another server"
	case r.Alone:
		state = "the only voter"
	}
	err := command.Table(w, [][]string{
		{"Server", fmt.Sprintf("%s (%s), %s", r.Node, r.ServerID, state)},
		{"Cluster", fmt.Sprintf("%s, epoch %d", r.ClusterID, r.Epoch)},
		{"Data", r.DataDir},
		{"Other voters", command.Dash(strings.Join(r.Others, ", "))},
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"GROUP", "LAST", "OF TERM", "TERM", "APPLIED", "SNAPSHOT", "KEYS", "VOTERS"}}
	for _, g := range r.Groups {
		u := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rows = append(rows, []string{u(g.ID), u(g.LastIndex), u(g.LastTerm), u(g.Term), u(g.AppliedIndex),
			u(g.SnapshotIndex), u(g.Keys), strings.Join(g.Voters, ", ")})
	}
	fmt.Fprintln(w)
	if err := command.Table(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return nil
}
