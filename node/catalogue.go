package node

import (
	"context"
	"sync"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
)

// buildCatalogue makes what knows which applications run where. The node's id is known only
// once its data directory is open.
func (n *Node) buildCatalogue(context.Context) error {
	id := n.host.Identity()
	c, err := discovery.New(discovery.Options{
		Self: discovery.Life{Node: id.Node, Boot: membership.NewBootID()}, Server: id.Server,
		Ask: func(ctx context.Context, peer string, question []byte) ([]byte, error) {
			if n.peerIdentity().Cluster == "" {
				return nil, fault.New(fault.Unavailable, "node.catalogue", "this node belongs to no cluster yet, and others would not answer it")
			}
			return n.port.Client().Call(ctx, peer, discovery.Method, question)
		},
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	c.Open()
	n.catalogue.Store(c)
	return n.closers.Push("catalogue of applications", func(context.Context) error { return c.Close() })
}

// catalogueMethod is how other nodes ask for what this one knows of applications.
func (n *Node) catalogueMethod() peer.Method {
	return peer.Method{Name: discovery.Method, MaxRequest: 256 << 10, MaxAnswer: 2 << 20, Concurrency: 4,
		Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
			if c := n.catalogue.Load(); c != nil {
				return c.Answer(ctx, r.Payload)
			}
			return nil, fault.New(fault.Unavailable, "node.catalogue", "the node is starting")
		}}
}

// followRoster tells the catalogue who is alive, for as long as the node runs.
func (n *Node) followRoster(g *membership.Gossip) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r := g.Roster()
			n.catalogue.Load().Members(lives(r))
			n.dropTunnels(r)
			select {
			case <-r.Changed():
			case <-ctx.Done():
				return
			}
		}
	})
	return n.closers.Push("roster of the catalogue", func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	})
}

// lives is a roster as the catalogue knows members.
func lives(r *membership.Roster) []discovery.Member {
	var out []discovery.Member
	for _, m := range r.Members() {
		one := discovery.Member{Life: discovery.Life{Node: m.NodeID, Boot: m.BootID}, Peer: m.ServerID, State: records.Failed}
		switch {
		case m.ClusterID == "":
			one.Peer = "" // it would refuse to answer
		case m.Role == membership.Sidecar:
			one.Peer = raftfsm.SidecarID(m.NodeID)
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

// buildServed tells others which applications can be called here, now that they can be.
// Its closer takes that back, before anything else ends.
func (n *Node) buildServed(context.Context) error {
	c := n.catalogue.Load()
	if err := c.Serve(n.served()); err != nil {
		return err
	}
	for app, ch := range n.calls.channels { // what changed between the two looks
		healthy, _ := ch.Healthy()
		c.SetHealth(discovery.App(app), healthy)
	}
	return n.closers.Push("applications", func(context.Context) error { return c.Serve(nil) })
}

// served is what this node says about its applications.
func (n *Node) served() []discovery.Record {
	var out []discovery.Record
	for _, a := range n.apps() {
		r := discovery.Record{App: discovery.App{ID: a.ID, Namespace: n.config.Namespace}, Healthy: true}
		if c := n.calls.channels[n.callee(a.ID)]; c != nil {
			r.Protocol = string(a.Protocol)
			r.Healthy, _ = c.Healthy()
		}
		out = append(out, r)
	}
	return out
}

// Apps lists every application of the cluster that this node knows of, node by node.
func (n *Node) Apps(context.Context) ([]api.AppInstance, error) {
	out := []api.AppInstance{}
	c := n.catalogue.Load()
	if c == nil {
		return out, nil
	}
	for _, i := range c.View().All() {
		state, calls := c.Standing(&i)
		out = append(out, api.AppInstance{App: i.App.ID, Namespace: i.App.Namespace, Node: i.Node, Boot: i.Boot, Protocol: i.Protocol, State: string(state),
			Load: int(i.Load), Calls: calls, Self: i.Local})
	}
	return out, nil
}

// applications is what an application is told about the others.
func (n *Node) applications() []api.ApplicationInfo {
	c := n.catalogue.Load()
	if c == nil {
		return nil
	}
	var out []api.ApplicationInfo
	for _, i := range c.View().All() {
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

// maxApplications bounds the applications that metadata lists.
const maxApplications = 1000
