package node

import (
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
)

// places finds where applications run, in the catalogue.
type places struct{ n *Node }

// Pick implements api.Places.
func (p places) Pick(app api.App, tried []*api.Place) (*api.Place, error) {
	c := p.n.catalogue.Load()
	if c == nil {
		return nil, fault.New(fault.Unavailable, "node.Pick", "the node is starting: it does not know where applications run yet")
	}
	var not []discovery.Instance
	for _, t := range tried {
		not = append(not, discovery.Instance{App: discovery.App(app), Node: t.Node, Server: t.Server, Boot: t.Boot, Local: t.Local})
	}
	lease, err := c.Pick(discovery.App(app), not)
	if fault.Is(err, fault.NotFound) && p.n.arriving() {
		return nil, fault.New(fault.Unavailable, "node.Pick", "this node has just started, and does not know yet what others serve: "+fault.Text(err))
	}
	if err != nil {
		return nil, err
	}
	i := lease.Instance
	return &api.Place{Node: i.Node, Server: i.Server, Boot: i.Boot, Local: i.Local, Done: func(o api.Outcome) { lease.Done(outcome(o)) }}, nil
}

// arrivalTime is how long a node that starts may take to meet others.
const arrivalTime = 2 * time.Second

// arriving reports whether this node has just started and others can be expected that it
// has not met.
func (n *Node) arriving() bool {
	if !n.config.Cluster.joining() && n.place.notes == "" || n.deps.Now().Sub(n.started) > arrivalTime {
		return false
	}
	g := n.gossip.Load()
	return g == nil || len(g.Roster().Members()) < 2
}

func outcome(o api.Outcome) discovery.Outcome {
	switch o {
	case api.Answered:
		return discovery.OK
	case api.Unreached:
		return discovery.Unreachable
	}
	return discovery.Failed
}

// knownApp reports whether an application is worth a time series: somebody serves it.
func (n *Node) knownApp(app api.App) bool {
	if c := n.catalogue.Load(); c != nil && len(c.View().Instances(discovery.App(app))) > 0 {
		return true
	}
	_, ours := n.calls.channels[app]
	return ours
}

// dropTunnels ends calls to nodes that are gone: their connections might not notice for
// minutes.
func (n *Node) dropTunnels(r *membership.Roster) {
	for _, m := range r.Members() {
		if m.State == membership.Alive {
			continue
		}
		server := m.ServerID
		if m.Role == membership.Sidecar {
			server = raftfsm.SidecarID(m.NodeID)
		}
		n.port.Lost(server)
	}
}
