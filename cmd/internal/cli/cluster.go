package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) membersCommand() *cobra.Command {
	return m.adminCommand("members [flags]", "Show the nodes of the cluster and their addresses, as a node knows them",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			var s api.ClusterStatus
			if err := a.get(ctx, adminapi.ClusterPath, &s); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, membersOf(s))
			}
			return printMembers(m.Stdout, s)
		})
}

func (m *Main) transferCommand() *cobra.Command {
	set, out, node, group := settings.New(), output{}, "", uint32(0)
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
		return m.askAdmin(c, set, node, out.json(), func(ctx context.Context, a *adminClient, asJSON bool) error {
			var r api.TransferResult
			if err := a.post(ctx, adminapi.TransferPath(uint64(group)), api.TransferRequest{To: to},
				&r); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, r)
			}
			_, err := fmt.Fprintln(m.Stdout, transferText(r))
			return err
		})
	}
	bindAdmin(c, set, &out)
	bindNode(c, &node)
	c.Flags().Uint32Var(&group, "group", 0, "`number` of the group, as status lists it")
	return c
}

func transferText(r api.TransferResult) string {
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
