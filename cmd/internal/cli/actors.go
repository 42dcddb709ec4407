package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) actorsCommand() *cobra.Command {
	c := &cobra.Command{Use: "actors", Short: "Show actors and their hosts, and move them", Args: cobra.ArbitraryArgs,
		Long: "Show which nodes host actors and which actors are active, or move actors to another node.",
		RunE: command.Group}
	c.AddCommand(m.actorsListCommand(), m.actorsMoveCommand(), m.actorsRebalanceCommand())
	return c
}

func (m *Main) actorsListCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	limit := 0
	c := &cobra.Command{Use: "list [flags]", Short: "Show the hosts of actors, active actors and pending reminders",
		Args: cobra.NoArgs, Example: "  quorate actors list --limit 1000"}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var list []schema.ActorsStatus
			if err := a.Get(ctx, adminapi.ActorsPath+"?limit="+strconv.Itoa(limit), &list); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, list)
			}
			return m.printActors(list)
		})
	}
	c.Flags().IntVar(&limit, "limit", 100, "most active actors and reminders of each application, at most 10000")
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) printActors(list []schema.ActorsStatus) error {
	hosts := [][]string{{"APP", "HOST", "TYPES", "ACTORS", "STATE"}}
	active := [][]string{{"APP", "TYPE", "ID", "HOST", "EPOCH"}}
	reminders := [][]string{{"APP", "TYPE", "ID", "REMINDER", "SCHEDULE", "NEXT", "ATTEMPTS", "LAST ERROR"}}
	var more, moreReminders bool
	for i := range list {
		s := &list[i]
		for _, h := range s.Hosts {
			state := "active"
			if h.Draining {
				state = "draining"
			}
			hosts = append(hosts, []string{s.App, h.Node, strings.Join(h.Types, ","), strconv.Itoa(h.Actors), state})
		}
		for _, a := range s.Actors {
			active = append(active, []string{s.App, a.Type, a.ID, command.Dash(a.Node),
				strconv.FormatUint(a.Epoch, 10)})
		}
		for j := range s.Reminders {
			r := &s.Reminders[j]
			reminders = append(reminders, []string{s.App, r.Type, r.ID, r.Name, command.Dash(r.Schedule),
				r.Next.Format(time.RFC3339), strconv.FormatUint(r.Attempts, 10), command.Dash(r.Error)})
		}
		more, moreReminders = more || s.More, moreReminders || s.MoreReminders
	}
	for _, part := range []struct {
		rows [][]string
		end  string
	}{
		{hosts, "\n"}, {active, moreText(more, "actors") + "\n"}, {reminders, moreText(moreReminders, "reminders")},
	} {
		if err := command.Table(m.Stdout, part.rows); err != nil {
			return err
		}
		if _, err := fmt.Fprint(m.Stdout, part.end); err != nil {
			return err
		}
	}
	return nil
}

// moreText returns the line below a table that is not complete, or "".
func moreText(more bool, what string) string {
	if !more {
		return ""
	}
	return "There are more " + what + ". --limit shows them.\n"
}

func (m *Main) actorsMoveCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	to := ""
	c := &cobra.Command{Use: "move type id [flags]", Short: "Move an active actor to another node",
		Args: cobra.ExactArgs(2),
		Long: "Move an active actor to another node, when its running call has ended. Calls that wait go on there. " +
			"If the call takes more than 5 s, the actor stays where it is.",
		Example: "  quorate actors move Counter alice --to node-b"}
	c.RunE = func(c *cobra.Command, args []string) error {
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var moved schema.ActorsMoved
			if err := a.Post(ctx, adminapi.ActorMovePath, schema.ActorMove{Type: args[0], ID: args[1], Node: to},
				&moved); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, moved)
			}
			_, err := fmt.Fprintf(m.Stdout, "Actor %s/%s is on node %s.\n", args[0], args[1], to)
			return err
		})
	}
	c.Flags().StringVar(&to, "to", "", "node id of the new host")
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) actorsRebalanceCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	c := &cobra.Command{Use: "rebalance type [flags]", Short: "Distribute the actors of a type evenly",
		Args: cobra.ExactArgs(1),
		Long: "Move as few active actors of a type as possible, so that the numbers of its hosts differ by at most " +
			"one. An actor whose running call takes more than 5 s stays where it is. Nodes with --rebalance-actors " +
			"distribute actors gradually by themselves.",
		Example: "  quorate actors rebalance Counter"}
	c.RunE = func(c *cobra.Command, args []string) error {
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var moved schema.ActorsMoved
			if err := a.Post(ctx, adminapi.ActorRebalancePath, schema.ActorRebalance{Type: args[0]},
				&moved); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, moved)
			}
			text := fmt.Sprintf("%d actors of type %s have moved.\n", moved.Moved, args[0])
			if moved.Busy > 0 {
				text += fmt.Sprintf("Not moved, because a call takes more than 5 s: %d. Run the command again later.\n",
					moved.Busy)
			}
			_, err := fmt.Fprint(m.Stdout, text)
			return err
		})
	}
	command.BindAdmin(c, set, &out)
	return c
}
