package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) locksCommand() *cobra.Command {
	c := &cobra.Command{Use: "locks", Short: "Show locks, and release them", Args: cobra.ArbitraryArgs,
		Long: "Show the locks of lock stores of type lock.raft, and release them.", RunE: command.Group}
	c.AddCommand(m.locksListCommand(), m.locksReleaseCommand())
	return c
}

func (m *Main) locksListCommand() *cobra.Command {
	return m.AdminCommand("list [flags]", "Show the locks that have an owner",
		func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var list []schema.LockStatus
			if err := a.Get(ctx, adminapi.LocksPath, &list); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, list)
			}
			rows := [][]string{{"STORE", "PREFIX", "RESOURCE", "OWNER", "TOKEN", "EXPIRY"}}
			for _, l := range list {
				rows = append(rows, []string{l.Store, command.Dash(l.Prefix), l.Resource, l.Owner, l.Revision,
					(time.Duration(l.ExpiryMS) * time.Millisecond).String()})
			}
			return command.Table(m.Stdout, rows)
		})
}

func (m *Main) locksReleaseCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	var prefix, token string
	c := &cobra.Command{
		Use:   "release store resource [flags]",
		Short: "Release a lock, whoever owns it",
		Long: "Release a lock, whoever owns it. The next caller that waits for it gets it. The former owner is not\n" +
			"notified: its writes with the token are refused, its other writes are not. The node logs the release.",
		Example: "  quorate locks release lockstore printer --prefix shop",
		Args:    cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if _, err := strconv.ParseUint(token, 10, 64); token != "" && err != nil {
			return command.Usagef("--token %q is not a token (it is a number; locks list shows it)", token)
		}
		r := schema.LockReleaseRequest{Store: args[0], Resource: args[1], Revision: token}
		if c.Flags().Changed("prefix") {
			r.Prefix = &prefix
		}
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var l schema.LockStatus
			if err := a.Post(ctx, adminapi.LockReleasePath, r, &l); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, l)
			}
			_, err := fmt.Fprintf(m.Stdout, "The lock on %s, which %s owned with the token %s, is released.\n",
				l.Resource, l.Owner, l.Revision)
			return err
		})
	}
	c.Flags().StringVar(&prefix, "prefix", "", "prefix of the lock, by default the id of the application; needed if "+
		"several have a lock on the resource")
	c.Flags().StringVar(&token, "token", "", "release the lock only if it has this token")
	command.BindAdmin(c, set, &out)
	return c
}
