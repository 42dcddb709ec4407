package faulttest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/child"
)

// Options are the options of a cluster. Program and Dir are required.
type Options struct {
	Program  Program
	Dir      string        // for data, disks and logs; must exist
	Flags    []string      // for every node, in addition to those that the harness needs
	DiskSize int64         // bytes; 0 = nodes share the disk of Dir
	Apps     []string      // applications that every node serves in addition to the first
	Pace     time.Duration // pause of a client between two requests; 0 = none
	Tell     func(string)  // called with a text when a fault has done something; nil = not called
	Watch    func(Seen)    // called after every request of a workload, by many goroutines; nil = not called
	// Application returns the application that runs beside a node. nil = no node has one. If Application is not nil,
	// Flags must contain the id of the application.
	Application func(n *Node) http.Handler
}

// Seen is one request of a workload with its result, as the client observed it.
type Seen struct {
	Begin   time.Time
	Took    time.Duration
	Reads   bool
	Strong  bool
	Outcome Outcome
}

// Program is the executable that the nodes run: quorate, or a program with the same command line.
type Program struct {
	Path string
	Env  []string // added to the environment
}

// Cluster is a set of nodes and the network between them. It is safe for concurrent use.
type Cluster struct {
	Net     *Network
	options Options

	gate sync.RWMutex // read-locked by a client during a request

	mu    sync.Mutex
	nodes []*Node // guarded by mu
	gone  []*Node // guarded by mu: nodes that are not members; closed with the cluster
	made  int     // guarded by mu: number of nodes ever made
}

// Supported returns nil if this machine can run clusters. Otherwise its error names what is missing. If disks is true,
// Supported also checks that each node can have its own disk.
func Supported(disks bool) error {
	if err := networkSupported(); err != nil || !disks {
		return err
	}
	return disksSupported()
}

// NewCluster returns a cluster without nodes.
func NewCluster(o Options) *Cluster { return &Cluster{Net: newNetwork(), options: o} }

// Add adds a server without starting it. If expect is 0, the server will join the existing nodes. Otherwise it will
// form a new cluster with expect-1 other servers. The server gets the given flags in addition to Options.Flags.
func (c *Cluster) Add(expect int, flags ...string) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.makeLocked("", flags)
	if err != nil {
		return nil, err
	}
	n.expect = expect
	c.nodes = append(c.nodes, n)
	if c.options.DiskSize > 0 && !n.Sidecar {
		n.Disk, err = newDisk(filepath.Join(n.dir, "disk"), c.options.DiskSize)
	}
	return n, err
}

// AddSidecar adds a sidecar, which is a node that holds no data. It does not start the sidecar.
func (c *Cluster) AddSidecar() (*Node, error) { return c.Add(0, sidecarFlags...) }

// Shadow adds a node with the same node id as an existing node, but with its own network and data directory. This
// simulates a misconfigured machine. The new node is not started, and workloads send no requests to it.
func (c *Cluster) Shadow(of *Node) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.makeLocked(of.Name, nil)
	if err == nil {
		c.gone = append(c.gone, n)
	}
	return n, err
}

// Retire kills the process of a node that is no longer a member of the cluster, and deletes the disk of the node.
// Faults and workloads do not use the node again.
func (c *Cluster) Retire(n *Node) error {
	c.mu.Lock()
	c.nodes = slices.DeleteFunc(slices.Clone(c.nodes), func(o *Node) bool { return o == n })
	if !slices.Contains(c.gone, n) {
		c.gone = append(c.gone, n)
	}
	c.mu.Unlock()
	return n.end()
}

// maxNodes is the maximum number of nodes that a cluster can have over time, including retired nodes. Each node gets
// its own address, and addresses are not reused.
const maxNodes = 250

// makeLocked makes a node with its own network. If name is empty, the node gets a new name. The caller holds mu.
func (c *Cluster) makeLocked(name string, flags []string) (*Node, error) {
	if c.made++; c.made > maxNodes {
		return nil, fmt.Errorf("a cluster has had %d nodes: no address is left", maxNodes)
	}
	n := &Node{
		Name: name, Addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(c.made)}), cluster: c,
		Sidecar: slices.Contains(flags, "sidecar"), flags: append(slices.Clone(c.options.Flags), flags...),
	}
	if name == "" {
		n.Name = fmt.Sprintf("n%d", c.made)
	}
	for _, other := range c.nodes {
		n.join = append(n.join, fmt.Sprintf("%s:%d", other.Addr, gossipPort))
	}
	if n.dir = filepath.Join(c.options.Dir, fmt.Sprintf("n%d", c.made)); os.MkdirAll(n.dir, 0o700) != nil {
		return nil, fmt.Errorf("no directory for %s", n.Name)
	}
	var err error
	if n.log, err = os.Create(filepath.Join(n.dir, "log")); err != nil {
		return nil, err
	}
	if n.ns, err = newNamespace(); err != nil {
		return nil, err
	}
	if err := c.Net.attach(n.ns, n.Addr); err != nil {
		n.ns.close()
		return nil, err
	}
	n.clients()
	n.node = &launcher.Node{ID: n.Name, Program: c.options.Program.Path, Process: launcher.Process{
		Options: child.Options{Stdout: n.log, Stderr: n.log, Thread: n.ns.enter, Death: syscall.SIGKILL}}}
	if c.options.Application != nil {
		if err := n.serveApplication(c.options.Application(n)); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Form adds and starts the given number of servers, which form a new cluster. It waits until all of them serve requests
// and are voters.
func (c *Cluster) Form(ctx context.Context, servers int) error {
	var seeds []string
	for range servers {
		n, err := c.Add(servers)
		if err != nil {
			return err
		}
		seeds = append(seeds, fmt.Sprintf("%s:%d", n.Addr, gossipPort))
	}
	for _, n := range c.Nodes() {
		n.join = seeds // all have the same command line
		if err := n.Start(); err != nil {
			return err
		}
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	return c.Voters(ctx, servers)
}

// Nodes returns all nodes that were added, running or not. It omits retired nodes and nodes that Shadow has added.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Running returns the nodes in Nodes that have a process. The process may be paused.
func (c *Cluster) Running() []*Node {
	return slices.DeleteFunc(c.Nodes(), func(n *Node) bool { return !n.Running() })
}

// Servers returns the nodes in Running that hold data.
func (c *Cluster) Servers() []*Node {
	return slices.DeleteFunc(c.Running(), func(n *Node) bool { return n.Sidecar })
}

// Quiet waits until no request of a workload is in flight, and then runs f. The workloads send no requests until f
// returns.
func (c *Cluster) Quiet(f func() error) error {
	c.gate.Lock()
	defer c.gate.Unlock()
	return f()
}

// pass runs a function that sends a client's next request, and then waits for Options.Pace. While Quiet is running,
// pass does not run the function, but waits until Quiet has returned.
func (c *Cluster) pass(ctx context.Context, request func()) {
	c.gate.RLock()
	request()
	c.gate.RUnlock()
	if c.options.Pace > 0 {
		pause(ctx, c.options.Pace)
	}
}

// watched calls Options.Watch with a request and its result.
func (c *Cluster) watched(r *Request, begin time.Time, a Answer) {
	if c.options.Watch != nil {
		c.options.Watch(Seen{Begin: begin, Took: time.Since(begin), Reads: r.reads, Strong: r.strong(),
			Outcome: a.Outcome})
	}
}

// Until calls check repeatedly until it returns nil. If ctx ends first, Until returns an error that wraps the last
// error that check returned before the end of ctx.
func Until(ctx context.Context, check func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // an error caused by the end of ctx explains nothing
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %w", last)
		}
	}
}

// Ready waits until every running node is healthy and accepts a strong write.
func (c *Cluster) Ready(ctx context.Context) error {
	for _, n := range c.Running() {
		err := Until(ctx, func() error { return n.serves(ctx) })
		if err != nil {
			return fmt.Errorf("%s does not serve: %w", n.Name, err)
		}
	}
	return nil
}

// serves returns nil if a node is healthy and accepts a strong write.
func (n *Node) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := n.Healthy(ctx); err != nil {
		return err
	}
	a := n.Do(ctx, Set("ready-"+n.Name, "1", Strong))
	return a.Err()
}

// Healthy returns nil if the node reports success for GET /v1.0/healthz. A node does so as soon as its start is
// complete.
func (n *Node) Healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+apiAddress+"/v1.0/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("healthz is %d", resp.StatusCode)
	}
	return nil
}

// Leader waits until a running server leads a group and serves writes, and returns this server. The group is given by
// its index.
func (c *Cluster) Leader(ctx context.Context, group int) (*Node, error) {
	var leader *Node
	err := Until(ctx, func() error {
		var term uint64
		leader = nil
		for _, n := range c.Servers() {
			s, err := n.Status(ctx)
			if err != nil || group >= len(s.Groups) {
				continue
			}
			// A deposed leader may not know it yet, so the highest term counts.
			if g := s.Groups[group]; g.State == "leader" && g.Writes && g.Term > term {
				leader, term = n, g.Term
			}
		}
		if leader == nil {
			return fmt.Errorf("group %d has no leader", group)
		}
		return nil
	})
	return leader, err
}

// Followers waits until a group has a leader, and returns the other running servers. The group is given by its index.
func (c *Cluster) Followers(ctx context.Context, group int) ([]*Node, error) {
	leader, err := c.Leader(ctx, group)
	return slices.DeleteFunc(c.Servers(), func(n *Node) bool { return n == leader }), err
}

// Voters waits until every group has exactly want voters.
func (c *Cluster) Voters(ctx context.Context, want int) error {
	return Until(ctx, func() error {
		for group := 0; ; group++ {
			have, known, err := c.voters(ctx, group)
			switch {
			case err != nil:
				return err
			case !known:
				return nil
			case len(have) != want:
				return fmt.Errorf("group %d has the voters %v, not %d", group, have, want)
			}
		}
	})
}

// voters returns the names of the voters of a group, as the leader of the group reports them. known is false if the
// group does not exist.
func (c *Cluster) voters(ctx context.Context, group int) (have []string, known bool, err error) {
	for _, n := range c.Servers() {
		s, err := n.Status(ctx)
		if err != nil {
			continue
		}
		if group >= len(s.Groups) {
			return nil, false, nil
		}
		if s.Groups[group].State != "leader" {
			continue
		}
		for _, server := range s.Groups[group].Servers {
			if server.Voter {
				have = append(have, server.Node)
			}
		}
		return have, true, nil
	}
	return nil, true, fmt.Errorf("no leader of group %d answers", group)
}

// Cut cuts the link between two nodes in both directions. c.Net.Heal restores the link.
func (c *Cluster) Cut(a, b *Node) {
	c.Net.Set(a.Addr, b.Addr, Link{Cut: true})
	c.Net.Set(b.Addr, a.Addr, Link{Cut: true})
}

// Close ends every process of the cluster, and removes its networks and disks. It is idempotent.
func (c *Cluster) Close() error {
	c.mu.Lock()
	nodes := append(c.nodes, c.gone...)
	c.nodes, c.gone = nil, nil
	c.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	c.Net.close()
	return errors.Join(errs...)
}
