package node

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/quorate/quorate/api"
	apipeer "github.com/quorate/quorate/api/peer"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/trust"
)

// invocation is what calls of applications need.
type invocation struct {
	parts    api.InvokeParts
	channels map[api.App]*appchannel.Channel // of the applications that are called
	client   atomic.Pointer[apipeer.Client]
	server   *apipeer.Server
}

// callee is an application of this node as others call it.
func (n *Node) callee(id string) api.App {
	return api.App{ID: id, Namespace: api.CanonicalNamespace(n.config.Namespace)}
}

// buildCalls makes the parts of invocation that need nothing of the cluster, and begins to
// look for the applications.
func (n *Node) buildCalls(context.Context) error {
	p := &n.calls.parts
	metrics, err := api.NewInvokeMetrics(n.registry, n.knownApp)
	if err != nil {
		return fault.Wrap(err, "node.Open", "registering metrics")
	}
	p.Metrics, p.Logger = metrics, n.log
	var merge api.SessionMerger
	if !n.deps.NoSessions {
		merge = merger{n}
	}
	p.Sessions, p.Policies = api.NewSessions(merge), api.NewPolicies()
	p.Here, p.Places, p.There = api.NewCallee(p.Sessions, metrics, p.Tracer), places{n}, n
	n.calls.channels = map[api.App]*appchannel.Channel{}
	for _, a := range n.apps() {
		if a.Port == 0 {
			continue
		}
		if err := n.buildChannel(a.App); err != nil {
			return err
		}
	}
	return nil
}

// buildChannel opens the way to an application.
func (n *Node) buildChannel(a App) error {
	token, _ := n.deps.Env("APP_API_TOKEN")
	app := n.callee(a.ID)
	c, err := appchannel.New(appchannel.Options{
		Protocol: appchannel.Protocol(a.Protocol), Address: a.Address, Port: a.Port, MaxConcurrency: a.MaxConcurrency, Token: token,
		Health: appchannel.Health(a.Health), MaxMessage: n.config.API.MaxBodySize, Logger: n.log.With("app_id", a.ID),
		OnHealth: func(healthy bool) {
			if c := n.catalogue.Load(); c != nil {
				c.SetHealth(discovery.App(app), healthy)
			}
		},
		OnLoad: func(inFlight int) {
			if c := n.catalogue.Load(); c != nil {
				c.SetLoad(discovery.App(app), inFlight)
			}
		},
	})
	if err != nil {
		return err
	}
	n.calls.channels[app] = c
	c.Open()
	return n.closers.Push("application "+a.ID, func(context.Context) error { return c.Close() })
}

// merger joins session tokens. There is nothing to join before the host is open.
type merger struct{ n *Node }

func (m merger) MergeSessions(a, b string) (string, bool) { return m.n.host.MergeSessions(a, b) }

// buildCarrier lets other nodes call the applications, and this one call theirs.
func (n *Node) buildCarrier(context.Context) error {
	n.calls.client.Store(apipeer.NewClient(n.port.Tunnel, n.advertised))
	n.calls.server = apipeer.NewServer(apipeer.ServerConfig{Listener: n.port.Tunnels(), Callee: n.calls.parts.Here, Prove: prove, Logger: n.log})
	n.calls.server.Open()
	return n.closers.Push("calls between nodes", func(ctx context.Context) error {
		n.calls.client.Load().Close()
		return n.calls.server.Close(ctx)
	})
}

// advertised is the address that others are told; not valid before gossip is open.
func (n *Node) advertised() netip.Addr {
	if g := n.gossip.Load(); g != nil {
		return g.Addr().Addr()
	}
	return netip.Addr{}
}

// prove looks for an application among those that a certificate names.
func prove(at peer.Caller, app api.App) (domain string, ok bool) {
	if !at.Proven {
		return "", false
	}
	for _, id := range at.Apps {
		if a, ok := trust.ParseApp(id); ok && a.ID == app.ID && api.CanonicalNamespace(a.Namespace) == app.Namespace {
			return a.TrustDomain, true
		}
	}
	return "", false
}

// Carry takes a call to another node.
func (n *Node) Carry(at *api.Place, in *api.Inbound) (api.Answer, error) {
	c := n.calls.client.Load()
	if c == nil {
		return api.Answer{}, fault.New(fault.Unavailable, "node.Carry", "the node is starting: the peer port is not open yet")
	}
	return c.Carry(at, in)
}

// drained are the closers of what takes requests, to be closed first and together: an
// application that serves a call may need the API for it.
func (n *Node) drained() []func(context.Context) error {
	out := []func(context.Context) error{n.calls.server.Close}
	for _, s := range n.apis {
		out = append(out, s.Close)
	}
	for _, s := range n.rpcs {
		out = append(out, s.Close)
	}
	return out
}
