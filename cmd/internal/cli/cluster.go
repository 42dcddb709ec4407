package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) membersCommand() *cobra.Command {
	return m.adminCommand("members [flags]", "Show the nodes of the cluster, as a node knows them",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			var members []api.MemberStatus
			if err := a.get(ctx, apihttp.AdminMembersPath, &members); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, members)
			}
			return printMembers(m.Stdout, members)
		})
}

// printMembers prints times in the format of the logs, so that they can be searched there.
func printMembers(w io.Writer, members []api.MemberStatus) error {
	rows := [][]string{{"NODE", "ROLE", "STATE", "SINCE", "LEADS", "PEER", "GOSSIP", "VERSION", "SERVER", "CLUSTER"}}
	for _, s := range members {
		name := s.Node
		if s.Self {
			name += " (this node)"
		}
		rows = append(rows, []string{name, s.Role, s.State, s.Since.UTC().Format(time.RFC3339),
			strconv.FormatUint(uint64(s.Leads), 10), dash(s.Peer), dash(s.Gossip),
			dash(s.Version), dash(s.ServerID), dash(s.ClusterID)})
	}
	return table(w, rows)
}

func (m *Main) transferCommand() *cobra.Command {
	set, out, group := settings.New(), output{}, uint32(0)
	c := &cobra.Command{
		Use:   "transfer-leader [node] [flags]",
		Short: "Transfer leadership of a group to another node",
		Long: "Transfer leadership of a group to the named node. Without a name it goes to the most up-to-date\n" +
			"voter. Run the command on the leader of the group: it uses the node of the data directory,\n" +
			"by default this user's. On any other node it fails and names the leader.",
		Example: "  quorate transfer-leader\n  quorate transfer-leader n2 --group 3",
		Args:    cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		var to string
		if len(args) > 0 {
			to = args[0]
		}
		return m.askAdmin(c, set, out.json(), func(ctx context.Context, a *adminClient, asJSON bool) error {
			var r api.TransferResult
			if err := a.post(ctx, apihttp.AdminTransferPath(uint64(group)), api.TransferRequest{To: to},
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
