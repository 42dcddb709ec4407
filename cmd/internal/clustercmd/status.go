package clustercmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
)

func (m *commands) statusCommand() *cobra.Command {
	all := false
	c := m.AdminCommand("status [flags]", "Show a node, its groups and its stores; or the whole cluster",
		func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			if all {
				return m.showCluster(ctx, a, asJSON)
			}
			var s schema.NodeStatus
			if err := a.Get(ctx, adminapi.StatusPath, &s); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, s)
			}
			return printStatus(m.Stdout, s)
		})
	c.Example = "  quorate status\n  quorate status --node b\n  quorate status --all"
	c.Flags().BoolVarP(&all, "all", "a", false, "show all nodes of the cluster and its groups")
	return c
}

func (m *commands) storesCommand() *cobra.Command {
	return m.AdminCommand("stores [flags]", "Show the components of a node, such as state stores",
		func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var stores []schema.StoreStatus
			if err := a.Get(ctx, adminapi.StoresPath, &stores); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, stores)
			}
			return printStores(m.Stdout, stores)
		})
}

func printStatus(w io.Writer, s schema.NodeStatus) error {
	n := s.Node
	facts := [][]string{
		{"Node", fmt.Sprintf("%s (%s of cluster %s)", command.Dash(n.ID), command.Dash(n.Role),
			command.Dash(n.Cluster))},
		{"Version", fmt.Sprintf("%s, up %s", command.Dash(n.Version),
			(time.Duration(n.UptimeMS) * time.Millisecond).Truncate(time.Second))},
		{"Ready", command.YesNo(s.Ready)},
	}
	if n.Gossip != "" {
		facts = append(facts, []string{"Cluster", clusterText(n)}, []string{"Gossip", n.Gossip + " (for --join)"},
			[]string{"Peers", command.Dash(n.Peer)})
	}
	if text := securityText(s.Security); text != "" {
		facts = append(facts, []string{"Between nodes", text})
	}
	for _, a := range n.Apps {
		on := strings.Join(a.API, ", ")
		if len(a.GRPC) > 0 {
			on += ", gRPC on " + strings.Join(a.GRPC, ", ")
		}
		facts = append(facts, []string{"Application", a.ID + " on " + on})
	}
	if n.Front != nil {
		facts = append(facts, []string{"Applications", fmt.Sprintf("%s, at the sidecar of this process: quorate "+
			"status --data-dir %s (this node holds only the data)", strings.Join(n.Front.Apps, ", "), n.Front.DataDir)})
	}
	data := fmt.Sprintf("%s (log store %s)", n.DataDir, command.Dash(n.LogStore))
	if n.LogStore == "" {
		data = n.DataDir + " (no replicas)"
	}
	facts = append(facts, []string{"Metrics", command.Dash(n.Metrics)}, []string{"Data", data})
	if s.Backup != nil {
		facts = append(facts, []string{"Backups", backupStatusText(*s.Backup)})
	}
	for _, i := range s.Issues {
		facts = append(facts, []string{"Issue", i.About + ": " + issueText(i, s.Issues)})
	}
	for _, i := range s.Notes {
		facts = append(facts, []string{"Note", i.About + ": " + i.Reason})
	}
	if err := command.Table(w, facts); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := printGroups(w, s.Groups, s.Issues); err != nil {
		return err
	}
	if err := printServers(w, s.Groups); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return printStores(w, s.Stores)
}

// backupStatusText describes the scheduled backups.
func backupStatusText(b schema.BackupStatus) string {
	text := fmt.Sprintf("to %s every %s", b.To, time.Duration(b.EverySeconds)*time.Second)
	if b.Running != "" {
		text += ", running on " + b.Running
	}
	if b.Last == nil {
		return text + ", none yet"
	}
	text += fmt.Sprintf(", last %s by %s (%s", b.Last.Time.UTC().Format(time.RFC3339), b.Last.Node,
		command.BytesText(b.Last.Bytes))
	if b.Last.Verified {
		text += ", verified"
	}
	return text + ")"
}

// issueText returns the reason of an issue. If the issue is only a consequence of another one in the list, the text
// names that one instead, for example "because of group 0".
func issueText(i schema.Issue, all []schema.Issue) string {
	for _, other := range all {
		if i.Reason == other.About+": "+other.Reason {
			return "because of " + other.About
		}
	}
	return i.Reason
}

// clusterText returns the cluster's id, and its epoch after a rescue.
func clusterText(n schema.NodeIdentity) string {
	if n.Epoch != 0 {
		return fmt.Sprintf("%s, epoch %d after a rescue", n.ClusterID, n.Epoch)
	}
	return cmp.Or(n.ClusterID, "none yet")
}

// securityText returns how traffic between nodes is secured.
func securityText(s schema.SecurityStatus) string {
	text := ""
	switch s.Nodes {
	case "none":
		return "not secured"
	case "token":
		text = "secured by token " + strings.Join(s.Tokens, ", accepting ")
	case "certificates":
		text = "secured by certificates of your own"
	default:
		return ""
	}
	if s.CertificateEnds != nil {
		text += ", certificate until " + s.CertificateEnds.UTC().Format(time.RFC3339)
	}
	return text
}

func printGroups(w io.Writer, groups []schema.GroupStatus, told []schema.Issue) error {
	if len(groups) > 0 && groups[0].State == "routed" {
		return printRoutes(w, groups, told)
	}
	rows := [][]string{{"GROUP", "STATE", "LEADER", "TERM", "COMMIT", "APPLIED", "LAST", "SNAPSHOT", "KEYS", "ON DISK",
		"LOG", "SERVES"}}
	for _, g := range groups {
		u := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rows = append(rows, []string{u(g.ID), g.State, command.Dash(g.Leader), u(g.Term), u(g.CommitIndex),
			u(g.AppliedIndex),
			u(g.LastLogIndex), u(g.SnapshotIndex),
			u(g.Keys), command.BytesText(g.DiskBytes), command.BytesText(g.LogBytes), serves(g, told)})
	}
	return command.Table(w, rows)
}

// printRoutes prints how a node without replicas reaches the groups.
func printRoutes(w io.Writer, groups []schema.GroupStatus, told []schema.Issue) error {
	rows := [][]string{{"GROUP", "STATE", "LEADER", "TERM", "NEAREST", "ROUND TRIP", "SERVES"}}
	for _, g := range groups {
		rows = append(rows, []string{strconv.FormatUint(g.ID, 10), g.State, command.Dash(g.Leader),
			strconv.FormatUint(g.Term, 10), command.Dash(g.Nearest),
			(time.Duration(g.RoundTripMicros) * time.Microsecond).String(), serves(g, told)})
	}
	return command.Table(w, rows)
}

// printServers prints the servers of the groups. Only the leader of a group knows the lag of each server, and why a
// server votes or does not vote. Another node shows no lags, and reasons only for servers that are not alive.
func printServers(w io.Writer, groups []schema.GroupStatus) error {
	rows := [][]string{{"GROUP", "SERVER", "IS", "LAG", "REASON"}}
	for _, g := range groups {
		for _, s := range g.Servers {
			is, lag := "non-voter", "-"
			if s.Voter {
				is = "voter"
			}
			if s.Lag != nil {
				lag = strconv.FormatUint(*s.Lag, 10)
			}
			rows = append(rows, []string{strconv.FormatUint(g.ID, 10), serverName(s.Node, s.Down()), is, lag,
				strings.TrimPrefix(s.Reason, s.Node+" ")})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintln(w)
	return command.Table(w, rows)
}

// serves returns a text that says whether a group serves reads, writes, both or neither. If it serves both, the text
// may warn that one more failure stops writes. Otherwise the text includes the reason, unless one of the printed issues
// contains it.
func serves(g schema.GroupStatus, printed []schema.Issue) string {
	text := "no strong reads, no writes" // eventual reads may still work
	switch {
	case g.Reads && g.Writes:
		text = "reads, writes"
		if margin := schema.Margin(g.Servers); margin != "" {
			text += "; " + margin
		}
		return text
	case g.Reads:
		text = "reads"
	case g.Writes:
		text = "writes"
	}
	if g.Reason != "" && !slices.ContainsFunc(printed,
		func(i schema.Issue) bool { return strings.Contains(i.Reason, g.Reason) }) {
		text += ": " + g.Reason
	}
	return text
}

// printStores prints the state stores of a node.
func printStores(w io.Writer, stores []schema.StoreStatus) error {
	rows := [][]string{{"STORE", "TYPE", "READY", "KEY PREFIX", "CONSISTENCY", "CAPABILITIES"}}
	for _, s := range stores {
		ready := command.YesNo(s.Ready)
		if s.Reason != "" {
			ready += ": " + s.Reason
		}
		capabilities := strings.ToLower(strings.Join(s.Capabilities, ", "))
		if s.ActorStore {
			capabilities += ", actor state"
		}
		rows = append(rows, []string{s.Name, s.Type, ready, command.Dash(s.KeyPrefix),
			command.Dash(s.DefaultConsistency), command.Dash(strings.TrimPrefix(capabilities, ", "))})
	}
	return command.Table(w, rows)
}
