package clustercmd

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// removePause is the time between two checks of a removal's progress.
const removePause = 500 * time.Millisecond

func (m *commands) removeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "remove server [flags]",
		Short: "Remove a server from the cluster permanently",
		Long: "Remove a server from the cluster permanently. Name it by its node id, or by its server id if\n" +
			"several servers have the same node id; members lists both. Any node can run the command. If the\n" +
			"server is a voter, an up-to-date non-voter takes its place, if there is one. A removal that\n" +
			"would leave the others without a majority is refused. The server need not run; if it does, it\n" +
			"stops serving. To join again it needs an empty data directory.",
		Example: "  quorate remove n3\n  quorate remove n3.4f0c2a9be81d7735 --wait 5m",
		Args:    cobra.ExactArgs(1),
	}
	m.removal(c, adminapi.RemovePath)
	return c
}

func (m *commands) leaveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "leave [flags]",
		Short: "Remove this node from the cluster permanently, and stop it",
		Long: "Remove the node of the data directory from the cluster permanently. Up-to-date non-voters take\n" +
			"over its votes, then it leaves its groups and stops. A removal that would leave the others without\n" +
			"a majority is refused. To stop a node that will come back, just end its process. To join again\n" +
			"after leaving, it needs an empty data directory.",
		Example: "  quorate leave --data-dir /var/lib/quorate",
		Args:    cobra.NoArgs,
	}
	m.removal(c, adminapi.LeavePath)
	return c
}

// removal completes the command c, which removes the server in its first argument from the cluster. Without an
// argument, the node itself leaves. The action of c repeats the request until the server is removed or the time in
// --wait has passed.
func (m *commands) removal(c *cobra.Command, path string) {
	set, out, patience := settings.New(), command.Output{}, time.Minute
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		var r schema.RemoveResult
		admin := &command.AdminClient{DataDir: dir}
		target := ""
		if len(args) > 0 {
			target = args[0]
		}
		if r, err = m.untilRemoved(c.Context(), admin, path, target, patience); err != nil {
			return err
		}
		if out.JSON() {
			return command.WriteJSON(m.Stdout, r)
		}
		_, err = fmt.Fprintln(m.Stdout, removedText(r))
		return err
	}
	command.BindAdmin(c, set, &out)
	c.Flags().DurationVar(&patience, "wait", patience,
		"how long to wait for the end of the removal; it continues in any case")
}

func (m *commands) untilRemoved(ctx context.Context, a *command.AdminClient, path, target string,
	patience time.Duration) (r schema.RemoveResult, err error) {
	deadline := time.Now().Add(patience)
	var unanswered error // an earlier request may have begun the removal
	for last := ""; ; {
		var body any = struct{}{}
		if target != "" {
			// Later requests name the server by its server id: gossip may forget the node, or find another one of its
			// id.
			body = schema.RemoveRequest{Target: cmp.Or(r.ServerID, target)}
		}
		named := target == "" || r.ServerID != "" || isServerID(target)
		ask, cancel := context.WithTimeout(ctx, command.AdminTime)
		err := a.Post(ask, path, body, &r)
		cancel()
		switch {
		case err == nil && r.Done:
			return r, nil
		case fault.Is(err, fault.Indeterminate) && !named:
			if e, ok := fault.As(err); ok {
				e.Hint = "look at quorate members; if the server is still there, repeat the command with its server id"
			}
			return r, err
		case err != nil && (!passes(err, r.ServerID != "") || time.Now().After(deadline)):
			switch lost := notDone(err); {
			case lost && unanswered != nil:
				err = unanswered
			case lost && r.ServerID != "": // the node accepted an earlier request
				err = &fault.Error{Code: fault.Indeterminate, Op: "cli.remove", Err: err,
					Msg:  waitingText(r) + ", and the removal may have been completed",
					Hint: "repeat the command with the server id " + r.ServerID}
			}
			return r, err
		case err == nil:
			unanswered = nil
		case fault.Is(err, fault.Indeterminate):
			unanswered = err
		}
		if text := waitingText(r); text != last && command.IsTerminal(m.Stderr) {
			fmt.Fprintln(m.Stderr, text)
			last = text
		}
		if time.Now().After(deadline) {
			return r, &fault.Error{Code: fault.Timeout, Op: "cli.remove", Msg: waitingText(r),
				Hint: "it continues on its own; run the command again, or wait longer with --wait"}
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// passes reports whether a removal request that failed with err may be repeated:
//
//   - after fault.Timeout or fault.Indeterminate
//   - after fault.Unavailable or fault.NotLeader, if begun is true because the node has accepted an earlier request
//
// After fault.Indeterminate, the caller must not repeat a request that names the server by its node id. The first
// request may have completed the removal, and a repeated one would remove a new server with the same node id.
func passes(err error, begun bool) bool {
	switch fault.CodeOf(err) {
	case fault.Indeterminate, fault.Timeout:
		return true
	case fault.Unavailable, fault.NotLeader:
		return begun
	}
	return false
}

// notDone reports whether err means that the failed request certainly did nothing. An earlier request may still have
// begun the removal.
func notDone(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.NotLeader, fault.Timeout, fault.Overloaded, fault.FormatBlocked:
		return true
	}
	return false
}

// isServerID reports whether a target is a server id: a node id, a dot and 16 hex digits.
func isServerID(target string) bool {
	i := strings.LastIndexByte(target, '.')
	digits, err := hex.DecodeString(target[i+1:])
	return i > 0 && err == nil && len(digits) == 8
}

// waitingText returns which groups a server is still in, and why.
func waitingText(r schema.RemoveResult) string {
	var parts []string
	for _, g := range r.Groups {
		if !g.Done {
			parts = append(parts, fmt.Sprintf("group %d: %s", g.Group, g.Reason))
		}
	}
	return r.Node + " is not removed yet: " + strings.Join(parts, "; ")
}

func removedText(r schema.RemoveResult) string {
	if r.ServerID == "" {
		return r.Node + " no longer has data of the cluster."
	}
	return fmt.Sprintf("%s (server %s) is removed from the cluster.", r.Node, r.ServerID)
}
