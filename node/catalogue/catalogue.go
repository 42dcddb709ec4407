package catalogue

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/network"
	"github.com/quorate/quorate/raftfsm/datadir"
)

// Network is how a Catalogue reaches the other nodes.
type Network interface {
	// Roster returns the nodes that gossip knows. Only Follow calls it.
	Roster() *membership.Roster
	// Identity returns the identity of this node on the peer port.
	Identity() peer.Identity
	// Port returns the port for calls between nodes.
	Port() *peer.Port
	// DropLost ends the calls to nodes that are no longer alive.
	DropLost(*membership.Roster)
}

// Options are the dependencies and settings of a Catalogue. Network, Logger and Registerer are required.
type Options struct {
	Network   Network
	Namespace string // of the applications of this node
	Joins     bool   // the node joins other nodes

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Catalogue knows which applications run on which nodes. It is empty until Open is called. It is safe for concurrent
// use.
type Catalogue struct {
	opts  Options
	known atomic.Pointer[discovery.Catalogue] // nil until Open
}

// New returns a Catalogue that is not open yet.
func New(o Options) *Catalogue { return &Catalogue{opts: o} }

// Open opens the catalogue. The data directory must be open, because it has the identity of this node. The function
// whyUnhealthy returns the reason why an application of this node is unhealthy, or "" if it is healthy.
func (c *Catalogue) Open(id datadir.Identity, whyUnhealthy func(api.App) string) error {
	d, err := discovery.New(discovery.Options{
		Self: discovery.Incarnation{Node: id.Node, Boot: membership.NewBootID()}, Server: id.Server,
		Ask: c.ask, Arrival: c.arrival(), WhyUnhealthy: whyUnhealthy, Logger: c.opts.Logger,
		Registerer: c.opts.Registerer,
	})
	if err != nil {
		return err
	}
	d.Open()
	c.known.Store(d)
	return nil
}

// Close closes the catalogue.
func (c *Catalogue) Close() error { return c.known.Load().Close() }

// Boot returns the id of this run of the node. The catalogue must be open.
func (c *Catalogue) Boot() string { return c.known.Load().Self().Boot }

// Channels returns the gossip channels of the catalogue by channel number. The catalogue must be open.
func (c *Catalogue) Channels() map[byte]membership.Channel {
	return map[byte]membership.Channel{discovery.ChannelNumber: c.known.Load()}
}

func (c *Catalogue) ask(ctx context.Context, server string, question []byte) ([]byte, error) {
	if c.opts.Network.Identity().Cluster == "" {
		return nil, fault.New(fault.Unavailable, "node.catalogue",
			"this node belongs to no cluster yet, and others would not answer it")
	}
	return c.opts.Network.Port().Client().Call(ctx, server, discovery.Method, question)
}

// Method returns the peer method that serves the application records of this node to other nodes. The catalogue must be
// open before the peer port opens.
func (c *Catalogue) Method() peer.Method {
	return peer.Method{Name: discovery.Method, MaxRequest: 256 << 10, MaxAnswer: 2 << 20, Concurrency: 4,
		Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
			return c.known.Load().Answer(ctx, r.Payload)
		}}
}

// Follow passes the live nodes to the catalogue until ctx ends. Gossip must be open.
func (c *Catalogue) Follow(ctx context.Context) {
	for {
		r := c.opts.Network.Roster()
		c.known.Load().Members(discoveryMembers(r))
		c.opts.Network.DropLost(r)
		select {
		case <-r.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// discoveryMembers converts a roster to the members of package discovery.
func discoveryMembers(r *membership.Roster) []discovery.Member {
	var out []discovery.Member
	for _, m := range r.Members() {
		incarnation := discovery.Incarnation{Node: m.NodeID, Boot: m.BootID}
		one := discovery.Member{Incarnation: incarnation, State: records.Failed}
		if m.ClusterID != "" { // nodes without a cluster refuse requests
			one.Peer = network.PeerID(&m)
		}
		switch m.State {
		case membership.Alive:
			one.State = records.Alive
		case membership.Left:
			one.State = records.Left
		}
		out = append(out, one)
	}
	return out
}

// Serve replaces the list of applications that this node announces. An application that is not in apps is no longer
// announced. The catalogue must be open.
func (c *Catalogue) Serve(apps []discovery.Record) error { return c.known.Load().Serve(apps) }

// SetHealth announces whether an application of this node is healthy.
func (c *Catalogue) SetHealth(app api.App, healthy bool) {
	if d := c.known.Load(); d != nil {
		d.SetHealth(app, healthy)
	}
}

// SetLoad announces how many calls of an application of this node are in flight.
func (c *Catalogue) SetLoad(app api.App, inFlight int) {
	if d := c.known.Load(); d != nil {
		d.SetLoad(app, inFlight)
	}
}

// Apps returns all known instances of all applications of the cluster, sorted by application and node.
func (c *Catalogue) Apps(context.Context) ([]schema.AppInstance, error) {
	out := []schema.AppInstance{}
	d := c.known.Load()
	if d == nil {
		return out, nil
	}
	for _, i := range d.View().All() {
		state, calls := d.Standing(&i)
		out = append(out, schema.AppInstance{App: i.App.ID, Namespace: i.App.Namespace, Node: i.Node, Boot: i.Boot,
			Protocol: i.Protocol, State: string(state),
			Load: int(i.Load), Calls: calls, Self: i.Local})
	}
	return out, nil
}

// Applications returns the known applications for the metadata API. If there are more than maxApplications, it returns
// only the first ones.
func (c *Catalogue) Applications() []api.ApplicationInfo {
	d := c.known.Load()
	if d == nil {
		return nil
	}
	var out []api.ApplicationInfo
	for _, i := range d.View().All() {
		if k := len(out) - 1; k < 0 || out[k].ID != i.App.ID || out[k].Namespace != i.App.Namespace {
			if len(out) == maxApplications {
				break
			}
			out = append(out, api.ApplicationInfo{ID: i.App.ID, Namespace: i.App.Namespace})
		}
		one := &out[len(out)-1]
		one.Instances++
		if i.Healthy && i.Protocol != "" {
			one.Callable++
		}
	}
	return out
}

// maxApplications bounds the number of applications in the metadata.
const maxApplications = 1000
