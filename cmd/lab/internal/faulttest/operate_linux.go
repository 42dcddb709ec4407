package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
)

// Broken is the error of a fault that finds a violated guarantee. Workloads do not use it; they report violations in
// other ways.
type Broken struct {
	Promise string // the violated guarantee, in a few words
	Text    string // what was observed
}

// Error returns Promise and Text on one line.
func (b *Broken) Error() string { return b.Promise + ": " + b.Text }

// tell calls Options.Tell with a text about what a fault did.
func (c *Cluster) tell(format string, args ...any) {
	if c.options.Tell != nil {
		c.options.Tell(fmt.Sprintf(format, args...))
	}
}

// Settled waits until every group has a leader and exactly the given number of voters. Each voter must meet these
// conditions:
//
//   - Its process is running.
//   - It has the server id that its group knows.
//   - It is at most 2000 log entries behind the leader.
func (c *Cluster) Settled(ctx context.Context, voters int) error {
	return Until(ctx, func() error {
		lives := map[string]bool{}
		var leaders []schema.GroupStatus
		groups := 0
		for _, n := range c.Servers() {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			lives[s.Node.ServerID] = true
			groups = len(s.Groups)
			for _, g := range s.Groups {
				if g.State == "leader" {
					leaders = append(leaders, g)
				}
			}
		}
		if len(leaders) != groups || groups == 0 {
			return fmt.Errorf("%d of %d groups have a leader", len(leaders), groups)
		}
		for _, g := range leaders {
			if err := whole(&g, lives, voters); err != nil {
				return err
			}
		}
		return nil
	})
}

// whole returns an error unless the group has the given number of voters, all of which meet the conditions of Settled.
// g is the status that the leader of the group reports, and lives contains the server ids of all running servers.
func whole(g *schema.GroupStatus, lives map[string]bool, voters int) error {
	const near = 2000 // log entries
	have := 0
	for _, s := range g.Servers {
		switch {
		case !s.Voter:
		case !lives[s.ServerID]:
			return fmt.Errorf("group %d: the voter %s (%s) is not the one that runs", g.ID, s.Node, s.ServerID)
		case s.Lag != nil && *s.Lag > near:
			return fmt.Errorf("group %d: %s is %d entries behind", g.ID, s.Node, *s.Lag)
		default:
			have++
		}
	}
	if have != voters {
		return fmt.Errorf("group %d has %d voters, not %d", g.ID, have, voters)
	}
	return nil
}

// Transfer transfers the leadership of the group from the node to the most up-to-date voter. The node must be the
// leader.
func (n *Node) Transfer(ctx context.Context, group uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin"+adminapi.TransferPath(group),
		strings.NewReader("{}"))
	if err != nil {
		return err
	}
	resp, err := n.admin.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return err
}

// Alive returns the ids of the nodes that the node considers alive.
func (n *Node) Alive(ctx context.Context) (map[string]bool, error) {
	var members []schema.MemberStatus
	if err := n.ask(ctx, adminapi.MembersPath, &members); err != nil {
		return nil, err
	}
	alive := map[string]bool{}
	for _, m := range members {
		if m.State == "alive" {
			alive[m.Node] = true
		}
	}
	return alive, nil
}

// Acquainted waits until every running node considers exactly the running nodes alive.
func (c *Cluster) Acquainted(ctx context.Context) error {
	return Until(ctx, func() error {
		nodes := c.Running()
		for _, n := range nodes {
			alive, err := n.Alive(ctx)
			if err != nil {
				return err
			}
			for _, other := range nodes {
				if !alive[other.Name] {
					return fmt.Errorf("%s does not take %s to be alive", n.Name, other.Name)
				}
			}
			if len(alive) != len(nodes) {
				return fmt.Errorf("%s takes %d nodes to be alive, %d run", n.Name, len(alive), len(nodes))
			}
		}
		return nil
	})
}

// Catalogued waits until every running node lists the same instances of an application, exactly one on each running
// node. Instances of ended processes must not be listed.
func (c *Cluster) Catalogued(ctx context.Context, app string) error {
	return Until(ctx, func() error {
		nodes := c.Running()
		var lives []string
		known := make([][]string, len(nodes))
		for at, n := range nodes {
			var instances []schema.AppInstance
			if err := n.ask(ctx, adminapi.AppsPath, &instances); err != nil {
				return err
			}
			for _, i := range instances {
				if i.App != app {
					continue
				}
				known[at] = append(known[at], i.Node+"/"+i.Boot)
				if i.Self {
					lives = append(lives, i.Node+"/"+i.Boot)
				}
			}
		}
		slices.Sort(lives)
		for at, n := range nodes {
			if slices.Sort(known[at]); !slices.Equal(known[at], lives) {
				return fmt.Errorf("%s knows of %s on %v; %v run", n.Name, app, known[at], lives)
			}
		}
		if len(lives) != len(nodes) {
			return fmt.Errorf("%s is on %v alone", app, lives)
		}
		return nil
	})
}

// Command runs a command of the program against the data directory of the node.
func (n *Node) Command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.cluster.options.Program.Path,
		append(args, "--data-dir", n.DataDir())...) //nolint:gosec // what the caller wants to test
	cmd.Env = append(cmd.Environ(), n.cluster.options.Program.Env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// healthyWithin waits until the node is healthy. It returns errEnded if the process has ended, and another error if
// the node is not healthy within the limit.
func (n *Node) healthyWithin(ctx context.Context, limit time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var gone error
	err := Until(bounded, func() error {
		if gone = nil; !n.Running() {
			gone = errEnded
			return nil
		}
		return n.Healthy(bounded)
	})
	return errors.Join(gone, err)
}

// errEnded is the error for a process that ended by itself.
var errEnded = errors.New("it ended itself")
