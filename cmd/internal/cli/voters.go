package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) votersCommand() *cobra.Command {
	set, out, node := settings.New(), output{}, ""
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
				return usagef("%q is no number of voters (usage: %s)", args[0], c.UseLine())
			}
		}
		return m.askAdmin(c, set, node, out.json(), func(ctx context.Context, a *adminClient, asJSON bool) error {
			var s api.VotersStatus
			var err error
			if number == 0 {
				err = a.get(ctx, adminapi.VotersPath, &s)
			} else {
				err = a.post(ctx, adminapi.VotersPath, api.VotersRequest{Voters: number}, &s)
			}
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(m.Stdout, s)
			default:
				return printVoters(m.Stdout, s, number != 0)
			}
		})
	}
	bindAdmin(c, set, &out)
	bindNode(c, &node)
	return c
}

func printVoters(w io.Writer, s api.VotersStatus, wasSet bool) error {
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
		rows = append(rows, []string{strconv.FormatUint(g.Group, 10), dash(strings.Join(g.Voters, ", ")),
			dash(strings.Join(g.NonVoters, ", "))})
	}
	return table(w, rows)
}
