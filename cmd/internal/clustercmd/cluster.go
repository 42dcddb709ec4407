package clustercmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *commands) membersCommand() *cobra.Command {
	wide := false
	c := m.AdminCommand("members [flags]", "Show the nodes of the cluster and their addresses, as a node knows them",
		func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var s schema.ClusterStatus
			if err := a.Get(ctx, adminapi.ClusterPath, &s); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, membersOf(s))
			}
			return printMembers(m.Stdout, s, wide)
		})
	c.Example = "  quorate members\n  quorate members --wide"
	c.Flags().BoolVarP(&wide, "wide", "w", false, "show all columns; without it, the table fits 80 columns")
	return c
}

func (m *commands) transferCommand() *cobra.Command {
	set, out, node, group := settings.New(), command.Output{}, "", uint32(0)
	c := &cobra.Command{
		Use:   "transfer-leader [node] [flags]",
		Short: "Transfer leadership of a group to another node",
		Long: "Transfer leadership of a group to the named node. Without a name it goes to the most up-to-date\n" +
			"voter. It uses the node of the data directory, by default this user's, which asks the leader of\n" +
			"the group if it does not lead it.",
		Example: "  quorate transfer-leader\n  quorate transfer-leader n2 --group 3",
		Args:    cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		var to string
		if len(args) > 0 {
			to = args[0]
		}
		return m.AskAdmin(c, set, node, out.JSON(), func(
			ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var r schema.TransferResult
			if err := a.Post(ctx, adminapi.TransferPath(uint64(group)), schema.TransferRequest{To: to},
				&r); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, r)
			}
			_, err := fmt.Fprintln(m.Stdout, transferText(r))
			return err
		})
	}
	command.BindAdmin(c, set, &out)
	command.BindNode(c, &node)
	c.Flags().Uint32Var(&group, "group", 0, "`number` of the group, as status lists it")
	return c
}

func transferText(r schema.TransferResult) string {
	switch r.Leader {
	case "":
		return fmt.Sprintf("%s gave up the leadership of group %d; its new leader is not known yet (see quorate "+
			"status).", r.From, r.Group)
	case r.From:
		return fmt.Sprintf("%s already leads group %d.", r.Leader, r.Group)
	default:
		return fmt.Sprintf("%s now leads group %d; the previous leader was %s.", r.Leader, r.Group, r.From)
	}
}
