package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/listen"
)

const (
	size     = 3
	patience = 2 * time.Minute        // for the cluster to form
	pause    = 100 * time.Millisecond // between two checks of the nodes
)

// cluster is one run of the three nodes.
type cluster struct {
	out      *lines
	binary   string
	dir      string
	httpPort int // of the first node; 0 = free ones
	logLevel string

	nodes []*child
}

// run starts the nodes. It returns when ctx ends or all nodes have ended. If ready is not nil, run closes this channel
// when the cluster serves.
func (c *cluster) run(ctx context.Context, ready chan<- struct{}) (err error) {
	remove, err := c.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := c.build(ctx); err != nil {
		return err
	}
	defer c.end()
	if err := c.start(ctx); err != nil {
		return interrupted(ctx, err)
	}
	leader, err := c.formed(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	c.tell(leader)
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

func (c *cluster) build(ctx context.Context) error {
	if c.binary != "" {
		return nil
	}
	c.out.say("Building quorate.")
	c.binary = filepath.Join(c.dir, "quorate")
	build := exec.CommandContext(ctx, "go", "build", "-o", c.binary, "github.com/quorate/quorate/cmd/quorate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	return build.Run()
}

// start starts the processes. It chooses the gossip ports of all nodes first, because every node needs them to join.
func (c *cluster) start(ctx context.Context) error {
	gossip, err := listen.Spare(ctx, size)
	if err != nil {
		return err
	}
	seeds := make([]string, size)
	for i := range size {
		seeds[i] = fmt.Sprintf("127.0.0.1:%d", gossip[i])
	}
	for i := range size {
		id := fmt.Sprintf("n%d", i+1)
		n, err := startChild(id, c.out, c.binary, "run", "--node-id", id, "--data-dir", c.dataDir(id), "--log-level",
			c.logLevel,
			"--http-port", fmt.Sprint(c.apiPort(ctx, i)), "--grpc-port", "0", "--metrics-port", "0", "--bind-address",
			"127.0.0.1", "--peer-port", "0",
			"--gossip-port", fmt.Sprint(gossip[i]), "--join", strings.Join(seeds, ","), "--bootstrap-expect",
			fmt.Sprint(size))
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

func (c *cluster) dataDir(id string) string { return filepath.Join(c.dir, id) }

// apiPort returns the default port, or 0 if another process uses it.
func (c *cluster) apiPort(ctx context.Context, i int) int {
	if c.httpPort == 0 || !free(ctx, c.httpPort+i) {
		return 0
	}
	return c.httpPort + i
}

// formed waits until all nodes serve and are voters, and returns the leader. From then on the cluster tolerates the
// failure of any one node.
func (c *cluster) formed(ctx context.Context) (*child, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	said := ""
	for {
		leader, err := c.look(ctx)
		if err == nil {
			return leader, nil
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			c.out.say("Waiting: %s.", text)
			said = text
		}
		for _, n := range c.nodes {
			if n.gone() {
				return nil, fmt.Errorf("%s ended before the cluster was ready; see its log", n.id)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the cluster is not ready after %s: %w", patience, err)
		}
	}
}

// look returns the leader, or an error with what is still missing.
func (c *cluster) look(ctx context.Context) (*child, error) {
	for _, n := range c.nodes {
		if err := n.healthy(ctx); err != nil {
			return nil, err
		}
	}
	s, err := c.status(ctx, c.nodes[0].id)
	if err != nil {
		return nil, err
	}
	for _, g := range s.Groups {
		if voters := g.voters(); voters != size {
			return nil, fmt.Errorf("%d of %d nodes vote", voters, size)
		}
	}
	if n := c.leader(s); n != nil {
		return n, nil
	}
	return nil, errors.New("there is no leader")
}

// status is the part of the output of quorate status that is needed here.
type status struct {
	Groups []groupStatus `json:"groups"`
}

type groupStatus struct {
	Leader  string `json:"leader"`
	Servers []struct {
		Voter bool `json:"voter"`
	} `json:"servers"`
}

func (g groupStatus) voters() int {
	n := 0
	for _, s := range g.Servers {
		if s.Voter {
			n++
		}
	}
	return n
}

// status runs quorate status on a node.
func (c *cluster) status(ctx context.Context, id string) (status, error) {
	var s status
	out, err := exec.CommandContext(ctx, c.binary, "status", "--json", "--data-dir", c.dataDir(id)).Output()
	if err != nil {
		return s, fmt.Errorf("quorate status of %s: %w", id, err)
	}
	return s, json.Unmarshal(out, &s)
}

func (c *cluster) leader(s status) *child {
	for _, n := range c.nodes {
		if len(s.Groups) > 0 && s.Groups[0].Leader == n.id {
			return n
		}
	}
	return nil
}

// tell prints the addresses of the nodes and commands to try.
func (c *cluster) tell(leader *child) {
	writer, reader := c.nodes[0], c.nodes[1]
	rest := reader
	if leader == reader {
		rest = c.nodes[2]
	}
	var b strings.Builder
	b.WriteString("\nThree nodes form one cluster. Each of them serves every request.\n\n")
	for _, n := range c.nodes {
		role := "follower"
		if n == leader {
			role = "leader"
		}
		fmt.Fprintf(&b, "  %s  http://%s  pid %-7d  %s\n", n.id, n.address(), n.pid(), role)
	}
	const path = "/v1.0/state/statestore"
	save := func(n *child, total int) string {
		return fmt.Sprintf(`curl -i %s%s -d '[{"key": "order-7", "value": {"total": %d}, `+
			`"options": {"consistency": "strong"}}]'`, n.address(), path, total)
	}
	fmt.Fprintf(&b, "\nTry in another terminal: write on one node, read on another, kill the leader and continue.\n\n")
	fmt.Fprintf(&b, "  %s\n  curl -i '%s%s/order-7?consistency=strong'\n  kill -9 %d; %s\n", save(writer, 12),
		reader.address(), path, leader.pid(), save(rest, 13))
	fmt.Fprintf(&b, "\nSee its status with: %s status --data-dir %s\nThe data is in %s. Ctrl-C ends all nodes.\n",
		c.binary, c.dataDir(rest.id), c.dir)
	c.out.say("%s", b.String())
}

// watch waits for the end of ctx, and reports nodes that end by themselves.
func (c *cluster) watch(ctx context.Context) error {
	for left := len(c.nodes); left > 0; left-- {
		n := c.next(ctx)
		if n == nil {
			return nil
		}
		c.out.say("\n%s has ended (%s). Start it again in another terminal:\n\n  %s\n", n.id, n.reason(), n.command())
	}
	return errors.New("all nodes have ended")
}

// next waits for the next node that ends, and returns it. It returns nil when ctx ends.
func (c *cluster) next(ctx context.Context) *child {
	ended := make(chan *child, len(c.nodes))
	quit, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range c.nodes {
		if n.shown {
			continue
		}
		go func() {
			select {
			case <-n.ended:
				ended <- n
			case <-quit.Done():
			}
		}()
	}
	select {
	case n := <-ended:
		n.shown = true
		return n
	case <-ctx.Done():
		return nil
	}
}

// end stops all processes concurrently and waits for them.
func (c *cluster) end() {
	c.out.say("\nEnding the nodes.")
	for _, n := range c.nodes {
		n.terminate()
	}
	for _, n := range c.nodes {
		n.wait()
		n.http.CloseIdleConnections()
	}
}
