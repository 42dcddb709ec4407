package clustercmd

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
)

// showCluster shows all nodes and groups of the cluster, as JSON if asJSON is true, and as tables otherwise.
func (m *commands) showCluster(ctx context.Context, a *command.AdminClient, asJSON bool) error {
	var s schema.ClusterStatus
	if err := a.Get(ctx, adminapi.ClusterPath, &s); err != nil {
		return err
	}
	if asJSON {
		return command.WriteJSON(m.Stdout, s)
	}
	return printCluster(m.Stdout, s)
}

// printCluster prints one row for each node and one for each group.
func printCluster(w io.Writer, s schema.ClusterStatus) error {
	rows := [][]string{{"NODE", "ROLE", "STATE", "READY", "LEADS", "LAG", "DISK FREE", "VERSION", "UPTIME", "REASON"}}
	for _, n := range s.Nodes {
		rows = append(rows, []string{nodeName(n.Member), n.Member.Role, n.Member.State, readyText(n),
			leadsText(s, n.Member), lagText(n.Lag), diskText(n),
			command.Dash(n.Member.Version), uptimeText(n),
			reasonText(n)})
	}
	if err := command.Table(w, rows); err != nil {
		return err
	}
	if len(s.Groups) > 0 {
		fmt.Fprintln(w)
		if err := printClusterGroups(w, s.Groups); err != nil {
			return err
		}
	}
	for i, n := range s.Notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "Note: %s: %s\n", n.About, n.Reason)
	}
	return nil
}

func printClusterGroups(w io.Writer, groups []schema.ClusterGroup) error {
	rows := [][]string{{"GROUP", "LEADER", "TERM", "VOTERS", "NON-VOTERS", "SERVES"}}
	for _, g := range groups {
		var voters, others []string
		for _, s := range g.Servers {
			name := serverName(s.Node, s.Down())
			if s.Lag != nil && *s.Lag > 0 {
				name += fmt.Sprintf(" (%d behind)", *s.Lag)
			}
			if s.Voter {
				voters = append(voters, name)
			} else {
				others = append(others, name)
			}
		}
		serving := serves(schema.GroupStatus{Reads: g.Reads, Writes: g.Writes, Reason: g.Reason,
			Servers: g.Servers}, nil)
		rows = append(rows, []string{strconv.FormatUint(g.ID, 10), command.Dash(g.Leader),
			strconv.FormatUint(g.Term, 10),
			command.Dash(strings.Join(voters, ", ")), command.Dash(strings.Join(others, ", ")), serving})
	}
	return command.Table(w, rows)
}

// printMembers prints the members as a table. If wide is false, the table has fewer columns, so that it fits 80
// characters. Times have the same format as in the logs, so that users can search the logs for them.
func printMembers(w io.Writer, s schema.ClusterStatus, wide bool) error {
	heading := []string{"NODE", "ROLE", "STATE", "SINCE", "LEADS", "PEER"}
	if wide {
		heading = append(heading, "GOSSIP", "READY", "LAG", "DISK FREE", "UPTIME", "VERSION", "SERVER", "CLUSTER")
	}
	rows := [][]string{heading}
	for _, n := range s.Nodes {
		m := n.Member
		row := []string{nodeName(m), m.Role, m.State, m.Since.UTC().Format(time.RFC3339), leadsText(s, m),
			command.Dash(m.Peer)}
		if wide {
			row = append(row, command.Dash(m.Gossip), readyText(n), lagText(n.Lag), diskText(n), uptimeText(n),
				command.Dash(m.Version), command.Dash(m.ServerID), command.Dash(m.ClusterID))
		}
		rows = append(rows, row)
	}
	return command.Table(w, rows)
}

// member is one node as members --json shows it.
type member struct {
	schema.MemberStatus
	Answered bool               `json:"answered"`
	Ready    bool               `json:"ready"`
	Lag      *uint64            `json:"lag,omitempty"`
	Disk     *schema.DiskStatus `json:"disk,omitempty"`
	UptimeMS int64              `json:"uptimeMs,omitempty"`
	Reason   string             `json:"reason,omitempty"` // why the node is not ready, or did not answer
}

func membersOf(s schema.ClusterStatus) []member {
	out := []member{}
	for _, n := range s.Nodes {
		one := member{MemberStatus: n.Member, Lag: n.Lag, Reason: reasonText(n)}
		if n.Status != nil {
			one.Answered, one.Ready, one.Disk = true, n.Status.Ready, n.Status.Disk
			one.UptimeMS = n.Status.Node.UptimeMS
		}
		out = append(out, one)
	}
	return out
}

func nodeName(m schema.MemberStatus) string {
	if m.Self {
		return m.Node + " (this node)"
	}
	return m.Node
}

// readyText returns "yes" or "no" for a node that is ready or not, and "unreachable" for a node that did not answer.
func readyText(n schema.NodeReport) string {
	if n.Status == nil {
		return "unreachable"
	}
	return command.YesNo(n.Status.Ready)
}

// serverName returns the node id of a server. If the server is not alive, its state, which is in down, follows the id.
func serverName(node, down string) string {
	if down == "" {
		return node
	}
	return node + " (" + down + ")"
}

// leadsText returns the numbers of the groups that a node leads. If there are more than four, it returns only how
// many there are. For a node that leads no group or is not alive, it returns "-".
func leadsText(s schema.ClusterStatus, m schema.MemberStatus) string {
	const few = 4
	groups := s.Leads(m.Node)
	switch {
	case len(groups) == 0 || m.State != "alive":
		return "-"
	case len(groups) == 1:
		return "group " + strconv.FormatUint(groups[0], 10)
	case len(groups) > few:
		return strconv.Itoa(len(groups)) + " groups"
	}
	var names []string
	for _, g := range groups {
		names = append(names, strconv.FormatUint(g, 10))
	}
	return "groups " + strings.Join(names, ",")
}

func lagText(lag *uint64) string {
	if lag == nil {
		return "-"
	}
	return strconv.FormatUint(*lag, 10)
}

func diskText(n schema.NodeReport) string {
	if n.Status == nil || n.Status.Disk == nil {
		return "-"
	}
	text := command.BytesText(n.Status.Disk.FreeBytes)
	if n.Status.Disk.Low {
		text += " (low)"
	}
	return text
}

func uptimeText(n schema.NodeReport) string {
	if n.Status == nil {
		return "-"
	}
	return (time.Duration(n.Status.Node.UptimeMS) * time.Millisecond).Truncate(time.Second).String()
}

// reasonText returns the issues that a node reports, except those that are consequences of other issues. If the node
// did not answer, the result says why.
func reasonText(n schema.NodeReport) string {
	if n.Status == nil {
		return n.Error
	}
	var out []string
	for _, i := range n.Status.Issues {
		if text := issueText(i, n.Status.Issues); text == i.Reason {
			out = append(out, i.About+": "+text)
		}
	}
	return strings.Join(out, "; ")
}
