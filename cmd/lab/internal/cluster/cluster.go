package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

const size = 3

// cluster is one run of the three nodes.
type cluster struct {
	out      *launcher.Lines
	binary   string
	dir      string
	httpPort int // of the first node; 0 = free ones
	logLevel string

	*launcher.Cluster
}

// run starts the nodes. It returns when ctx ends or all nodes have ended. If ready is not nil, run closes ready when
// the cluster serves requests.
func (c *cluster) run(ctx context.Context, ready chan<- struct{}) (err error) {
	remove, err := c.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := c.start(ctx); err != nil {
		return interrupted(ctx, err)
	}
	defer c.end()
	err = c.Formed(ctx, func(what string) { c.out.Say("Waiting: %s.", what) })
	if err != nil {
		return interrupted(ctx, err)
	}
	if err := c.tell(ctx); err != nil {
		return interrupted(ctx, err)
	}
	if ready != nil {
		close(ready)
	}
	return c.watch(ctx)
}

// interrupted returns err, or nil if ctx has ended. An interrupt by the user is thus not reported as a failure.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// directory creates the directory for the data, and returns a function that deletes it. That function does nothing if
// the user has chosen the directory with -dir.
func (c *cluster) directory() (remove func() error, err error) {
	if c.dir != "" {
		if c.dir, err = filepath.Abs(c.dir); err != nil {
			return nil, err
		}
		return func() error { return nil }, os.MkdirAll(c.dir, 0o700)
	}
	c.dir, err = os.MkdirTemp("", "quorate-cluster-")
	return func() error { return os.RemoveAll(c.dir) }, err
}

// start starts the processes. It prints the logs, which the processes write to standard error, and discards the
// standard output of the processes.
func (c *cluster) start(ctx context.Context) (err error) {
	c.Cluster, err = launcher.New(ctx, launcher.Plan{Program: c.binary, Dir: c.dir, Size: size, FirstPort: c.httpPort,
		Flags: []string{"--log-level", c.logLevel}})
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		n.Options.Prefix, n.Options.Stderr = n.ID+" | ", c.out
		if err := n.Start(); err != nil {
			return errors.Join(err, c.Stop())
		}
	}
	return nil
}

// tell prints the addresses of the nodes and commands to try.
func (c *cluster) tell(ctx context.Context) error {
	writer, reader := c.Nodes[0], c.Nodes[1]
	leader, err := c.Leader(ctx, writer)
	if err != nil {
		return err
	}
	if leader == nil { // it has just stepped down
		leader = writer
	}
	rest := reader
	if leader == reader {
		rest = c.Nodes[2]
	}
	var b strings.Builder
	b.WriteString("\nThree nodes form one cluster. Each of them serves every request.\n\n")
	for _, n := range c.Nodes {
		role := "follower"
		if n == leader {
			role = "leader"
		}
		fmt.Fprintf(&b, "  %s  %s  pid %-7d  %s\n", n.ID, n.Base(), n.Pid(), role)
	}
	const path = "/v1.0/state/statestore"
	save := func(n *launcher.Node, total int) string {
		return fmt.Sprintf(`curl -i %s%s -d '[{"key": "order-7", "value": {"total": %d}, `+
			`"options": {"consistency": "strong"}}]'`, n.Address(), path, total)
	}
	fmt.Fprintf(&b, "\nTry in another terminal: write on one node, read on another, kill the leader and continue.\n\n")
	fmt.Fprintf(&b, "  %s\n  curl -i '%s%s/order-7?consistency=strong'\n  kill -9 %d; %s\n", save(writer, 12),
		reader.Address(), path, leader.Pid(), save(rest, 13))
	fmt.Fprintf(&b, "\nSee its status with: %s status --data-dir %s\nThe data is in %s. Ctrl-C ends all nodes.\n",
		rest.Program, rest.DataDir, c.dir)
	c.out.Say("%s", b.String())
	return nil
}

// watch waits for the end of ctx, and reports nodes that end by themselves.
func (c *cluster) watch(ctx context.Context) error {
	ended := make(chan *launcher.Node, size)
	for _, n := range c.Nodes {
		go func() { // it ends at the latest when run stops the nodes
			<-n.Ended()
			ended <- n
		}()
	}
	for range c.Nodes {
		select {
		case n := <-ended:
			c.out.Say("\n%s has ended: %v. Start it again in another terminal:\n\n  %s\n", n.ID, n.Current().Err(),
				n.Shell())
		case <-ctx.Done():
			return nil
		}
	}
	return errors.New("all nodes have ended")
}

// end stops all nodes.
func (c *cluster) end() {
	c.out.Say("\nEnding the nodes.")
	if err := c.Stop(); err != nil {
		c.out.Say("%v", err)
	}
}
