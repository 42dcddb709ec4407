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
	if len(s.Groups) > 0 {
		if short := tooFewServers(s.Voters, len(s.Groups[0].Voters)+len(s.Groups[0].NonVoters)); short != "" {
			fmt.Fprintln(w, short)
		}
	}
	if len(s.Groups) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows := [][]string{{"GROUP", "VOTERS", "NON-VOTERS"}}
	warnings := ""
	for _, g := range s.Groups {
		names := func(nodes []string) string {
			marked := make([]string, 0, len(nodes))
			for _, node := range nodes {
				marked = append(marked, serverName(node, g.States[node]))
			}
			return command.Dash(strings.Join(marked, ", "))
		}
		rows = append(rows, []string{strconv.FormatUint(g.Group, 10), names(g.Voters), names(g.NonVoters)})
		if margin := g.Margin(); margin != "" {
			warnings += fmt.Sprintf("\nGroup %d: %s.\n", g.Group, margin)
		}
	}
	if err := command.Table(w, rows); err != nil {
		return err
	}
	_, err := io.WriteString(w, warnings)
	return err
}

// tooFewServers returns a message for a cluster with fewer servers than the wanted number of voters, or "" if there are
// enough. The message says how many servers vote, and how many must join before more can vote. With three or more
// servers, the number of voters is always odd.
func tooFewServers(wanted, servers int) string {
	if servers >= wanted || servers < 1 {
		return ""
	}
	vote, next := servers, servers+1
	if servers > 2 {
		vote = servers - 1 + servers%2
		next = vote + 2
	}
	until := command.Count(next-servers, "more server") + " join"
	if next-servers == 1 {
		until = "one more server joins"
	}
	have, do := command.Count(servers, "server"), "vote"
	if vote == 1 {
		do = "votes"
	}
	text := fmt.Sprintf("The cluster has %s: %d %s until %s.", have, vote, do, until)
	if vote < servers {
		text = strings.TrimSuffix(text, ".") + ", because an even number of voters survives no more failures."
	}
	return text
}
