package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/settings"
)

func (m *Main) locksCommand() *cobra.Command {
	c := &cobra.Command{Use: "locks", Short: "Show locks, and release them", Args: cobra.ArbitraryArgs,
		Long: "Show the locks of lock stores of type lock.raft, and release them.", RunE: group}
	c.AddCommand(m.locksListCommand(), m.locksReleaseCommand())
	return c
}

func (m *Main) locksListCommand() *cobra.Command {
	return m.adminCommand("list [flags]", "Show the locks that have an owner",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			var list []api.LockStatus
			if err := a.get(ctx, adminapi.LocksPath, &list); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, list)
			}
			rows := [][]string{{"STORE", "PREFIX", "RESOURCE", "OWNER", "TOKEN", "EXPIRY"}}
			for _, l := range list {
				rows = append(rows, []string{l.Store, dash(l.Prefix), l.Resource, l.Owner, l.Revision,
					(time.Duration(l.ExpiryMS) * time.Millisecond).String()})
			}
			return table(m.Stdout, rows)
		})
}

func (m *Main) locksReleaseCommand() *cobra.Command {
	set, out := settings.New(), output{}
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
		r := api.LockReleaseRequest{Store: args[0], Resource: args[1], Revision: token}
		if c.Flags().Changed("prefix") {
			r.Prefix = &prefix
		}
		return m.askAdmin(c, set, "", out.json(), func(ctx context.Context, a *adminClient, asJSON bool) error {
			var l api.LockStatus
			if err := a.post(ctx, adminapi.LockReleasePath, r, &l); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, l)
			}
			_, err := fmt.Fprintf(m.Stdout, "The lock on %s, which %s owned with the token %s, is released.\n",
				l.Resource, l.Owner, l.Revision)
			return err
		})
	}
	c.Flags().StringVar(&prefix, "prefix", "", "prefix of the lock, by default the id of the application; needed if "+
		"several have a lock on the resource")
	c.Flags().StringVar(&token, "token", "", "release the lock only if it has this token")
	bindAdmin(c, set, &out)
	return c
}
