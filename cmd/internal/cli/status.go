package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// adminTime is the timeout of a request to the admin API.
const adminTime = 10 * time.Second

func (m *Main) statusCommand() *cobra.Command {
	all := false
	c := m.adminCommand("status [flags]", "Show a node, its groups and its stores; or the whole cluster",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			if all {
				return m.showCluster(ctx, a, asJSON)
			}
			var s api.NodeStatus
			if err := a.get(ctx, adminapi.StatusPath, &s); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, s)
			}
			return printStatus(m.Stdout, s)
		})
	c.Example = "  quorate status\n  quorate status --node b\n  quorate status --all"
	c.Flags().BoolVarP(&all, "all", "a", false, "show all nodes of the cluster and its groups")
	return c
}

func (m *Main) storesCommand() *cobra.Command {
	return m.adminCommand("stores [flags]", "Show the state stores of a node",
		func(ctx context.Context, a *adminClient, asJSON bool) error {
			var stores []api.StoreStatus
			if err := a.get(ctx, adminapi.StoresPath, &stores); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(m.Stdout, stores)
			}
			return printStores(m.Stdout, stores)
		})
}

// adminCommand is a command that sends a request to the node of a data directory.
func (m *Main) adminCommand(use, short string,
	ask func(ctx context.Context, a *adminClient, asJSON bool) error) *cobra.Command {
	set, out, node := settings.New(), output{}, ""
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + ".\nIt uses the node of the data directory, by default this user's; --node reaches any other\n" +
			"node of the cluster through it.",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return m.askAdmin(c, set, node, out.json(), ask)
	}
	bindAdmin(c, set, &out)
	bindNode(c, &node)
	return c
}

// bindNode adds the flag that names another node of the cluster.
func bindNode(c *cobra.Command, node *string) {
	c.Flags().StringVar(node, "node", "", "`id` of the node of the cluster to use, as members lists it "+
		"(default the node of the data directory)")
}

// bindAdmin adds the flags that choose a node and the output format.
func bindAdmin(c *cobra.Command, set *settings.Set, out *output) {
	set.BindOnly(c.Flags(), "data-dir", "cluster", "config-file")
	out.bind(c)
}

// askAdmin calls the function ask with an admin client for the local node, and with asJSON. It finds that node by the
// data directory in the flags. If node is not empty, the local node forwards the requests to the node with that id.
func (m *Main) askAdmin(c *cobra.Command, set *settings.Set, node string, asJSON bool,
	ask func(ctx context.Context, a *adminClient, asJSON bool) error) error {
	dir, err := m.adminDir(c, set)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), adminTime)
	defer cancel()
	return ask(ctx, &adminClient{dataDir: dir, node: node}, asJSON)
}

// adminClient sends requests to the admin API of the node that runs in a data directory. That node can forward them to
// another node.
type adminClient struct {
	dataDir string
	node    string // id of the other node; empty = the node of the data directory
}

// get requests path and decodes the response into v.
func (a *adminClient) get(ctx context.Context, path string, v any) error {
	return a.do(ctx, http.MethodGet, path, nil, v)
}

// post sends body as JSON to path and decodes the response into v.
func (a *adminClient) post(ctx context.Context, path string, body, v any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.do(ctx, http.MethodPost, path, text, v)
}

func (a *adminClient) do(ctx context.Context, method, path string, body []byte, v any) error {
	if a.node != "" {
		path = adminapi.NodePath(a.node, path)
	}
	socket, err := adminapi.FindSocket(a.dataDir)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialUnix(ctx, socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return a.unreachable(socket, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return a.unreachable(socket, err)
	case resp.StatusCode != http.StatusOK:
		return fault.Unmarshal(answer)
	}
	if err := json.Unmarshal(answer, v); err != nil {
		return &fault.Error{Code: fault.Internal, Op: "cli.admin", Msg: "the response of the node cannot be decoded",
			Hint: "use the same quorate version as the node", Err: err}
	}
	return nil
}

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

func (a *adminClient) unreachable(socket string, err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: "cli.admin", Msg: "the node on " + a.dataDir + " does not answer",
		Err: rootCause(err)}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Msg, e.Err, e.Hint = "no node runs on "+a.dataDir, nil,
			"start one with: quorate run; or choose another with --data-dir or --cluster"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Msg, e.Err, e.Hint = fault.Denied, "the admin socket "+socket+" belongs to another user", nil,
			"run the command as the user of the node"
	}
	return e
}

func printStatus(w io.Writer, s api.NodeStatus) error {
	n := s.Node
	facts := [][]string{
		{"Node", fmt.Sprintf("%s (%s of cluster %s)", dash(n.ID), dash(n.Role), dash(n.Cluster))},
		{"Version", fmt.Sprintf("%s, up %s", dash(n.Version),
			(time.Duration(n.UptimeMS) * time.Millisecond).Truncate(time.Second))},
		{"Ready", yesNo(s.Ready)},
	}
	if n.Gossip != "" {
		facts = append(facts, []string{"Cluster", clusterText(n)}, []string{"Gossip", n.Gossip + " (for --join)"},
			[]string{"Peers", dash(n.Peer)})
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
	data := fmt.Sprintf("%s (log store %s)", n.DataDir, dash(n.LogStore))
	if n.LogStore == "" {
		data = n.DataDir + " (no replicas)"
	}
	facts = append(facts, []string{"Metrics", dash(n.Metrics)}, []string{"Data", data})
	if s.Backup != nil {
		facts = append(facts, []string{"Backups", backupStatusText(*s.Backup)})
	}
	for _, i := range s.Issues {
		facts = append(facts, []string{"Issue", i.About + ": " + issueText(i, s.Issues)})
	}
	for _, i := range s.Notes {
		facts = append(facts, []string{"Note", i.About + ": " + i.Reason})
	}
	if err := table(w, facts); err != nil {
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
func backupStatusText(b api.BackupStatus) string {
	text := fmt.Sprintf("to %s every %s", b.To, time.Duration(b.EverySeconds)*time.Second)
	if b.Running != "" {
		text += ", running on " + b.Running
	}
	if b.Last == nil {
		return text + ", none yet"
	}
	text += fmt.Sprintf(", last %s by %s (%s", b.Last.Time.UTC().Format(time.RFC3339), b.Last.Node,
		bytesText(b.Last.Bytes))
	if b.Last.Verified {
		text += ", verified"
	}
	return text + ")"
}

// issueText returns the reason of issue i. If another of the given issues is the cause of issue i, the text only names
// that issue instead of repeating its reason.
func issueText(i api.Issue, all []api.Issue) string {
	for _, other := range all {
		if i.Reason == other.About+": "+other.Reason {
			return "because of " + other.About
		}
	}
	return i.Reason
}

// clusterText returns the cluster's id, and its epoch after a rescue.
func clusterText(n api.NodeIdentity) string {
	if n.Epoch != 0 {
		return fmt.Sprintf("%s, epoch %d after a rescue", n.ClusterID, n.Epoch)
	}
	return cmp.Or(n.ClusterID, "none yet")
}

// securityText returns how traffic between nodes is secured.
func securityText(s api.SecurityStatus) string {
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

func printGroups(w io.Writer, groups []api.GroupStatus, told []api.Issue) error {
	if len(groups) > 0 && groups[0].State == "routed" {
		return printRoutes(w, groups, told)
	}
	rows := [][]string{{"GROUP", "STATE", "LEADER", "TERM", "COMMIT", "APPLIED", "LAST", "SNAPSHOT", "KEYS", "DATA",
		"LOG", "SERVES"}}
	for _, g := range groups {
		u := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rows = append(rows, []string{u(g.ID), g.State, dash(g.Leader), u(g.Term), u(g.CommitIndex), u(g.AppliedIndex),
			u(g.LastLogIndex), u(g.SnapshotIndex),
			u(g.Keys), bytesText(g.DiskBytes), bytesText(g.LogBytes), serves(g, told)})
	}
	return table(w, rows)
}

// printRoutes prints how a node without replicas reaches the groups.
func printRoutes(w io.Writer, groups []api.GroupStatus, told []api.Issue) error {
	rows := [][]string{{"GROUP", "STATE", "LEADER", "TERM", "NEAREST", "ROUND TRIP", "SERVES"}}
	for _, g := range groups {
		rows = append(rows, []string{strconv.FormatUint(g.ID, 10), g.State, dash(g.Leader),
			strconv.FormatUint(g.Term, 10), dash(g.Nearest),
			(time.Duration(g.RoundTripMicros) * time.Microsecond).String(), serves(g, told)})
	}
	return table(w, rows)
}

// printServers prints the members of the groups. Only leaders know lag and reason.
func printServers(w io.Writer, groups []api.GroupStatus) error {
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
			rows = append(rows, []string{strconv.FormatUint(g.ID, 10), s.Node, is, lag,
				strings.TrimPrefix(s.Reason, s.Node+" ")})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintln(w)
	return table(w, rows)
}

// serves returns which kinds of requests a group serves now. If the group does not serve all kinds, the text also has
// the reason. It omits a reason that the status output already contains: the second parameter has the issues that were
// printed before.
func serves(g api.GroupStatus, told []api.Issue) string {
	text := "no strong reads, no writes" // eventual reads may still work
	switch {
	case g.Reads && g.Writes:
		return "reads, writes"
	case g.Reads:
		text = "reads"
	case g.Writes:
		text = "writes"
	}
	if g.Reason != "" && !slices.ContainsFunc(told,
		func(i api.Issue) bool { return strings.Contains(i.Reason, g.Reason) }) {
		text += ": " + g.Reason
	}
	return text
}

func printStores(w io.Writer, stores []api.StoreStatus) error {
	rows := [][]string{{"STORE", "TYPE", "READY", "KEY PREFIX", "CONSISTENCY", "CAPABILITIES"}}
	for _, s := range stores {
		ready := yesNo(s.Ready)
		if s.Reason != "" {
			ready += ": " + s.Reason
		}
		capabilities := strings.ToLower(strings.Join(s.Capabilities, ", "))
		if s.ActorStore {
			capabilities += ", actor state"
		}
		rows = append(rows, []string{s.Name, s.Type, ready, s.KeyPrefix, s.DefaultConsistency,
			strings.TrimPrefix(capabilities, ", ")})
	}
	return table(w, rows)
}
