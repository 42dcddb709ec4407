package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
)

// showCluster shows all nodes and groups of the cluster, as JSON if asJSON is true, otherwise as tables.
func (m *Main) showCluster(ctx context.Context, a *adminClient, asJSON bool) error {
	var s api.ClusterStatus
	if err := a.get(ctx, adminapi.ClusterPath, &s); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(m.Stdout, s)
	}
	return printCluster(m.Stdout, s)
}

// printCluster prints one row for each node and one for each group.
func printCluster(w io.Writer, s api.ClusterStatus) error {
	rows := [][]string{{"NODE", "ROLE", "STATE", "READY", "LEADS", "LAG", "DISK FREE", "VERSION", "UPTIME", "REASON"}}
	for _, n := range s.Nodes {
		rows = append(rows, []string{nodeName(n.Member), n.Member.Role, n.Member.State, readyText(n),
			leadsText(s.Leads(n.Member.Node)), lagText(n.Lag), diskText(n), dash(n.Member.Version), uptimeText(n),
			reasonText(n)})
	}
	if err := table(w, rows); err != nil {
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

func printClusterGroups(w io.Writer, groups []api.ClusterGroup) error {
	rows := [][]string{{"GROUP", "LEADER", "TERM", "VOTERS", "NON-VOTERS", "SERVES"}}
	for _, g := range groups {
		var voters, others []string
		for _, s := range g.Servers {
			name := s.Node
			if s.Lag != nil && *s.Lag > 0 {
				name += fmt.Sprintf(" (%d behind)", *s.Lag)
			}
			if s.Voter {
				voters = append(voters, name)
			} else {
				others = append(others, name)
			}
		}
		serving := serves(api.GroupStatus{Reads: g.Reads, Writes: g.Writes, Reason: g.Reason}, nil)
		rows = append(rows, []string{strconv.FormatUint(g.ID, 10), dash(g.Leader), strconv.FormatUint(g.Term, 10),
			dash(strings.Join(voters, ", ")), dash(strings.Join(others, ", ")), serving})
	}
	return table(w, rows)
}

// printMembers prints the members as a table. Times have the same format as in the logs, so that users can search the
// logs for them.
func printMembers(w io.Writer, s api.ClusterStatus) error {
	rows := [][]string{{"NODE", "ROLE", "STATE", "SINCE", "READY", "LEADS", "LAG", "DISK FREE", "UPTIME", "PEER",
		"GOSSIP", "VERSION", "SERVER", "CLUSTER"}}
	for _, n := range s.Nodes {
		m := n.Member
		rows = append(rows, []string{nodeName(m), m.Role, m.State, m.Since.UTC().Format(time.RFC3339), readyText(n),
			strconv.FormatUint(uint64(m.Leads), 10), lagText(n.Lag), diskText(n), uptimeText(n), dash(m.Peer),
			dash(m.Gossip), dash(m.Version), dash(m.ServerID), dash(m.ClusterID)})
	}
	return table(w, rows)
}

// member is one node as members --json shows it.
type member struct {
	api.MemberStatus
	Answered bool            `json:"answered"`
	Ready    bool            `json:"ready"`
	Lag      *uint64         `json:"lag,omitempty"`
	Disk     *api.DiskStatus `json:"disk,omitempty"`
	UptimeMS int64           `json:"uptimeMs,omitempty"`
	Reason   string          `json:"reason,omitempty"` // why it is not ready, or did not answer
}

func membersOf(s api.ClusterStatus) []member {
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

func nodeName(m api.MemberStatus) string {
	if m.Self {
		return m.Node + " (this node)"
	}
	return m.Node
}

// readyText returns "unreachable" for a node that did not answer.
func readyText(n api.NodeReport) string {
	if n.Status == nil {
		return "unreachable"
	}
	return yesNo(n.Status.Ready)
}

// leadsText lists a few groups and counts many.
func leadsText(groups []uint64) string {
	const few = 4
	switch {
	case len(groups) == 0:
		return "-"
	case len(groups) > few:
		return strconv.Itoa(len(groups)) + " groups"
	}
	var names []string
	for _, g := range groups {
		names = append(names, strconv.FormatUint(g, 10))
	}
	return strings.Join(names, ",")
}

func lagText(lag *uint64) string {
	if lag == nil {
		return "-"
	}
	return strconv.FormatUint(*lag, 10)
}

func diskText(n api.NodeReport) string {
	if n.Status == nil || n.Status.Disk == nil {
		return "-"
	}
	text := bytesText(n.Status.Disk.FreeBytes)
	if n.Status.Disk.Low {
		text += " (low)"
	}
	return text
}

func uptimeText(n api.NodeReport) string {
	if n.Status == nil {
		return "-"
	}
	return (time.Duration(n.Status.Node.UptimeMS) * time.Millisecond).Truncate(time.Second).String()
}

// reasonText returns why a node did not answer, or the issues that the node reports. It omits an issue if another
// issue is its cause.
func reasonText(n api.NodeReport) string {
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
