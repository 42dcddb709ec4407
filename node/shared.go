package node

import (
	"context"
	"os"

	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/node/shareddir"
)

// Shared is a node on a data directory that several processes of one user on this host share. One of these processes
// runs the server, and the others run sidecars of this server. The user configures nothing for this. Package shareddir
// describes the details. A Shared is safe for concurrent use.
type Shared struct {
	*shareddir.Shared
	addrs   Addresses
	serving *Node // the node that serves the applications
}

// OpenShared opens a node on the shared data directory c.Data.Dir. Use OpenShared if WithDefaults sets Data.Shared.
// Otherwise use Open.
func OpenShared(ctx context.Context, c Config, d Deps) (*Shared, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o := &sharedOpener{config: c, deps: d}
	s, err := shareddir.Open(ctx, shareddir.Options{
		Dir: c.Data.Dir, RuntimeDir: c.Data.RuntimeDir, MakeToken: !c.Security.secured() && !c.Security.Insecure,
		Opener: o, Logger: d.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Shared{Shared: s, addrs: o.front, serving: o.serving}, nil
}

// Addresses returns the addresses of the node that serves the applications. They do not change when this process
// becomes the server of the shared directory.
func (s *Shared) Addresses() Addresses { return s.addrs }

// Reload makes the node that serves the applications read its component files again. It does not wait until the reload
// is complete.
func (s *Shared) Reload() { s.serving.Reload() }

// sharedOpener opens the nodes of a shared directory.
type sharedOpener struct {
	config Config // the settings of the user
	deps   Deps
	front  Addresses // the addresses of serving; written before OpenShared returns

	serving *Node // the node that serves the applications; nil until it is open
}

// Open implements shareddir.Opener.
func (o *sharedOpener) Open(ctx context.Context, p shareddir.Plan) (shareddir.Node, error) {
	c, d, at := o.config, o.deps, place{notes: p.Notes}
	if p.Token != "" {
		c.Security.ClusterTokenFile = p.Token
	}
	switch p.Part {
	case shareddir.Attached:
		c.Cluster.Role, c.Data.Dir, c.Data.Shared = RoleSidecar, p.Dir, false
	case shareddir.Successor:
		c, at.front = c.successor(), o.serving
		d.Registry = nil // the sidecar has registered its metrics already
	}
	n, err := open(ctx, c, d, at)
	if err != nil {
		return nil, err
	}
	if p.Part != shareddir.Successor {
		o.front, o.serving = n.addrs, n
	}
	if p.Part == shareddir.Attached {
		o.front.SharedDir = o.config.Data.Dir
	}
	return sharedNode{n}, nil
}

// successor returns the configuration for the server that this process opens when it takes over the shared directory.
// The node id, the number of partitions and the log store are unset, because they are stored in the directory. Ports
// that the user has chosen become free ports, because the sidecar of this process still uses the chosen ones.
func (c Config) successor() Config {
	c.Cluster.NodeID, c.Cluster.Partitions, c.Data.LogStore = "", 0, ""
	for _, p := range []*Port{&c.Cluster.Gossip, &c.Cluster.Peer, &c.Metrics.Port, &c.Console.Port} {
		if p.Given {
			*p = Port{Given: true}
		}
	}
	return c
}

// sharedNode implements shareddir.Node.
type sharedNode struct{ *Node }

// Note implements shareddir.Node.
func (n sharedNode) Note() hostshare.Note {
	return hostshare.Note{Node: n.host.Identity().Node, Role: string(n.config.Cluster.Role), Gossip: n.addrs.Gossip,
		Admin: n.addrs.Admin, Apps: idsOf(n.apps()), PID: os.Getpid()}
}

// MetricsAddr implements shareddir.Node.
func (n sharedNode) MetricsAddr() string { return n.addrs.Metrics }
