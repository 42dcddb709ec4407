package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/listen"
)

const (
	patience = 2 * time.Minute        // for a node to be ready, and for the cluster to form
	pause    = 100 * time.Millisecond // between two checks of the nodes
)

// Plan describes a cluster to start.
type Plan struct {
	Program   string // path of the quorate program
	Dir       string // directory for the data directories
	Size      int    // number of nodes
	FirstPort int    // API port of n1; n2 gets the next one, and so on; a port in use is replaced; 0 = free ports
	Flags     []string
}

// Cluster is a cluster of the nodes n1, n2 and so on, which all run on this machine.
type Cluster struct {
	Nodes []*Node
}

// New returns a cluster, and chooses the ports and directories of its nodes. It does not start the nodes. The caller
// must start all of them and then call Formed.
func New(ctx context.Context, p Plan) (*Cluster, error) {
	program, err := filepath.Abs(p.Program)
	if err != nil {
		return nil, err
	}
	ports, err := listen.Spare(ctx, 2*p.Size)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	var seeds []string
	for i := range p.Size {
		id, http := fmt.Sprintf("n%d", i+1), ports[p.Size+i]
		if p.FirstPort > 0 && free(ctx, p.FirstPort+i) {
			http = p.FirstPort + i
		}
		n := Loopback(id, program, filepath.Join(p.Dir, id), http, ports[i])
		seeds, c.Nodes = append(seeds, n.Gossip()), append(c.Nodes, n)
	}
	for _, n := range c.Nodes {
		if p.Size > 1 {
			n.Flags = append(n.Flags, "--join", strings.Join(seeds, ","), "--bootstrap-expect", fmt.Sprint(p.Size))
		}
		n.Flags = append(n.Flags, p.Flags...)
	}
	return c, nil
}

// free reports whether nothing listens on a port of 127.0.0.1.
func free(ctx context.Context, port int) bool {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// Formed waits until all nodes serve and vote. From then on, a cluster of three nodes tolerates the failure of any one
// node. Formed passes each new reason for the delay to the function waiting. It returns an error if a node ends, if ctx
// ends, or after two minutes.
func (c *Cluster) Formed(ctx context.Context, waiting func(what string)) error {
	said := ""
	return c.poll(ctx, func(ctx context.Context) error {
		err := c.Check(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			waiting(said)
		}
		return err
	})
}

// Check returns nil if the cluster is complete: all nodes serve, and the first node reports that each group has a
// leader and that all nodes vote in it. Otherwise the error names the first problem.
func (c *Cluster) Check(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Healthy(ctx); err != nil {
			return err
		}
	}
	s, err := c.Nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	if len(s.Groups) == 0 {
		return errors.New("no group is open")
	}
	for _, g := range s.Groups {
		if voters := Voters(g); voters != len(c.Nodes) {
			return fmt.Errorf("%d of %d nodes vote", voters, len(c.Nodes))
		}
		if g.Leader == "" {
			return errors.New("there is no leader")
		}
	}
	return nil
}

// Ready waits up to two minutes until node n serves. If any node of the cluster ends, Ready returns an error at once.
func (c *Cluster) Ready(ctx context.Context, n *Node) error { return c.poll(ctx, n.Healthy) }

// Leader returns the leader of the first group, as reported by the given node. It returns nil if the leader is unknown.
func (c *Cluster) Leader(ctx context.Context, source *Node) (*Node, error) {
	s, err := source.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		if len(s.Groups) > 0 && s.Groups[0].Leader == n.ID {
			return n, nil
		}
	}
	return nil, nil
}

// poll calls check until it returns nil. It returns an error if a node has ended, if ctx ends, or after two minutes.
func (c *Cluster) poll(ctx context.Context, check func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := check(limit)
		if err == nil {
			return nil
		}
		for _, n := range c.Nodes {
			if !n.Running() {
				return fmt.Errorf("%s has ended before the cluster was ready; see its log: %w", n.ID, err)
			}
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("the cluster is not ready after %s: %w", patience, err)
		}
	}
}

// Stop stops all nodes, and with them the applications that they have started.
func (c *Cluster) Stop() error {
	var all []*Process
	for _, n := range c.Nodes {
		all = append(all, &n.Process)
		defer n.Client.CloseIdleConnections()
	}
	return StopAll(all...)
}
