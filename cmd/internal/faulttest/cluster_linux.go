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
	"time"
)

// Options say how to make a cluster. Program and Dir are required.
type Options struct {
	Program  Program
	Dir      string        // for data, disks and logs; must exist
	Flags    []string      // given to every node beside what the harness needs
	DiskSize int64         // bytes; 0 = nodes share the disk of Dir
	Apps     []string      // applications that every node serves beside the first
	Pace     time.Duration // a client pauses so long between two requests; 0 = it does not
	Tell     func(string)  // told what faults did; nil = nobody asks
	Watch    func(Seen)    // told of every request of a workload; nil = nobody asks. Called from many goroutines
}

// Seen is what became of one request, as its client saw it.
type Seen struct {
	Begin   time.Time
	Took    time.Duration
	Reads   bool
	Strong  bool
	Outcome Outcome
}

// Cluster is a set of nodes and the wire between them. Safe for concurrent use.
type Cluster struct {
	Net     *Network
	options Options

	gate sync.RWMutex // held for reading by a client while it makes a request

	mu    sync.Mutex
	nodes []*Node // guarded by mu
	gone  []*Node // guarded by mu: no member any more, or never one; closed with the cluster
	made  int     // guarded by mu: nodes, ever
}

// Supported says what this machine lacks for clusters, with disks of their own or without;
// nil if nothing.
func Supported(disks bool) error {
	if err := networkSupported(); err != nil || !disks {
		return err
	}
	return disksSupported()
}

// NewCluster makes a cluster without nodes.
func NewCluster(o Options) *Cluster { return &Cluster{Net: newNetwork(), options: o} }

// Add makes a server that will join the nodes there are; with expect > 0 it forms the
// cluster with the others that expect so many. It is not started. Flags are added to
// those of the cluster.
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

// AddSidecar makes a node that holds no data. It is not started.
func (c *Cluster) AddSidecar() (*Node, error) { return c.Add(0, sidecarFlags...) }

// Shadow makes a node with the name of another one, a network and a directory of its own,
// that no workload uses: a machine that was set up wrongly. It is not started.
func (c *Cluster) Shadow(of *Node) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.makeLocked(of.Name, nil)
	if err == nil {
		c.gone = append(c.gone, n)
	}
	return n, err
}

// Retire ends the process of a node that is no member any more. No workload uses it again.
func (c *Cluster) Retire(n *Node) error {
	c.mu.Lock()
	c.nodes = slices.DeleteFunc(slices.Clone(c.nodes), func(o *Node) bool { return o == n })
	if !slices.Contains(c.gone, n) {
		c.gone = append(c.gone, n)
	}
	c.mu.Unlock()
	return n.end()
}

// maxNodes is how many addresses there are.
const maxNodes = 250

// makeLocked makes a node with a network; an empty name is one that nobody had.
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
	return n, nil
}

// Form makes and starts servers that form the cluster together, and waits until all of
// them vote and serve.
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
		n.join = seeds // all are started with the same line
		if err := n.Start(); err != nil {
			return err
		}
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	return c.Voters(ctx, servers)
}

// Nodes are all nodes that were added.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Running are the nodes that have a process.
func (c *Cluster) Running() []*Node {
	return slices.DeleteFunc(c.Nodes(), func(n *Node) bool { return !n.Running() })
}

// Servers are the running nodes that hold data.
func (c *Cluster) Servers() []*Node {
	return slices.DeleteFunc(c.Running(), func(n *Node) bool { return n.Sidecar })
}

// Quiet runs f while no workload makes a request: it waits for those under way.
func (c *Cluster) Quiet(f func() error) error {
	c.gate.Lock()
	defer c.gate.Unlock()
	return f()
}

// pass lets a client of a workload make its next request, and paces it.
func (c *Cluster) pass(ctx context.Context, request func()) {
	c.gate.RLock()
	request()
	c.gate.RUnlock()
	if c.options.Pace > 0 {
		pause(ctx, c.options.Pace)
	}
}

// watched tells of a request that was made.
func (c *Cluster) watched(r *Request, begin time.Time, a Answer) {
	if c.options.Watch != nil {
		c.options.Watch(Seen{Begin: begin, Took: time.Since(begin), Reads: r.reads, Strong: r.strong(), Outcome: a.Outcome})
	}
}

// Until asks again and again until check returns nil; the error is its last one before ctx
// ended.
func Until(ctx context.Context, check func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // what fails because the time is up says nothing
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %w", last)
		}
	}
}

// Ready waits until every running node serves strong writes and reads.
func (c *Cluster) Ready(ctx context.Context) error {
	for _, n := range c.Running() {
		err := Until(ctx, func() error { return n.serves(ctx) })
		if err != nil {
			return fmt.Errorf("%s does not serve: %w", n.Name, err)
		}
	}
	return nil
}

// serves asks whether a node is healthy and takes a strong write.
func (n *Node) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := n.Healthy(ctx); err != nil {
		return err
	}
	a := n.Do(ctx, Set("ready-"+n.Name, "1", Strong))
	return a.Err()
}

// Healthy asks whether a node and its application, if it has one, serve.
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

// Leader asks the running nodes which of them leads a group and serves writes.
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
			// A deposed leader may not know it yet: the highest term counts.
			if g := s.Groups[group]; g.State == "leader" && g.Writes && g.Term > term {
				leader, term = n, g.Term
			}
		}
		if leader == nil {
			return fmt.Errorf("nobody leads group %d", group)
		}
		return nil
	})
	return leader, err
}

// Followers are the running nodes but for the leader of a group.
func (c *Cluster) Followers(ctx context.Context, group int) ([]*Node, error) {
	leader, err := c.Leader(ctx, group)
	return slices.DeleteFunc(c.Servers(), func(n *Node) bool { return n == leader }), err
}

// Voters waits until every group has so many voters.
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

// voters are the voters of a group as its leader knows them; known says that there is such
// a group.
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

// Cut cuts the wire between two nodes, both ways.
func (c *Cluster) Cut(a, b *Node) {
	c.Net.Set(a.Addr, b.Addr, Link{Cut: true})
	c.Net.Set(b.Addr, a.Addr, Link{Cut: true})
}

// Close ends every process and takes everything apart. Idempotent.
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
