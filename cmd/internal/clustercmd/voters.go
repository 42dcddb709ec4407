package clustercmd

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *commands) votersCommand() *cobra.Command {
	set, out, node := settings.New(), command.Output{}, ""
	c := &cobra.Command{
		Use:   "voters [number] [flags]",
		Short: "Show or set the number of voters of the cluster",
		Long: "Show how many voters the groups of the cluster should have, and which servers vote. With a number,\n" +
			"set it for the whole cluster: votes then move one at a time. The number is stored in the cluster;\n" +
			"--voters of a server counts only when the cluster forms.",
		Example: "  quorate voters\n  quorate voters 5",
		Args:    cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		number := 0
		if len(args) > 0 {
			var err error
			if number, err = strconv.Atoi(args[0]); err != nil || number < 1 {
				return command.Usagef("%q is no number of voters (usage: %s)", args[0], c.UseLine())
			}
		}
		return m.AskAdmin(c, set, node, out.JSON(), func(
			ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var s schema.VotersStatus
			var err error
			if number == 0 {
				err = a.Get(ctx, adminapi.VotersPath, &s)
			} else {
				err = a.Post(ctx, adminapi.VotersPath, schema.VotersRequest{Voters: number}, &s)
			}
			switch {
			case err != nil:
				return err
			case asJSON:
				return command.WriteJSON(m.Stdout, s)
			default:
				return printVoters(m.Stdout, s, number != 0)
			}
		})
	}
	command.BindAdmin(c, set, &out)
	command.BindNode(c, &node)
	return c
}

func printVoters(w io.Writer, s schema.VotersStatus, wasSet bool) error {
	text := fmt.Sprintf("The cluster wants %d voters in each group.", s.Voters)
	switch {
	case wasSet && s.Before == s.Voters:
		text = fmt.Sprintf("The cluster already wants %d voters in each group.", s.Voters)
	case wasSet && s.Before != 0:
		text = fmt.Sprintf("The cluster now wants %d voters in each group (%d before).", s.Voters, s.Before)
	case wasSet:
		text = fmt.Sprintf("The cluster now wants %d voters in each group.", s.Voters)
	}
	if s.Voters == 1 {
		text = strings.Replace(text, "1 voters", "1 voter", 1)
	}
	fmt.Fprintln(w, text)
	if len(s.Groups) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows := [][]string{{"GROUP", "VOTERS", "NON-VOTERS"}}
	for _, g := range s.Groups {
		rows = append(rows, []string{strconv.FormatUint(g.Group, 10), command.Dash(strings.Join(g.Voters, ", ")),
			command.Dash(strings.Join(g.NonVoters, ", "))})
	}
	return command.Table(w, rows)
}
