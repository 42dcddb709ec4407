package node

import (
	"context"
	"net"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/listen"
)

// apps lists every application the node serves: the one of the flags, then those of the file.
func (c Config) apps() []AppEntry {
	first := AppEntry{App: c.App, HTTPPort: c.API.HTTP}
	return append([]AppEntry{first}, c.Apps...)
}

// apps lists every application this node serves.
func (n *Node) apps() []AppEntry {
	if n.place.bare {
		return nil
	}
	return n.config.apps()
}

// appIDs are the ids of all applications the node serves.
func (c Config) appIDs() []string {
	var out []string
	for _, a := range c.apps() {
		out = append(out, a.ID)
	}
	return out
}

// tokensOf are those that open an application's APIs: its own, or those of the node, which
// may change while it runs.
func (n *Node) tokensOf(a AppEntry) (*api.Tokens, error) {
	if a.Token != "" {
		return api.NewTokens([]string{string(a.Token)})
	}
	if n.tokens == nil {
		t, err := api.NewTokens(reveal(n.config.Security.APITokens))
		if err != nil {
			return nil, err
		}
		n.tokens = t
	}
	return n.tokens, nil
}

// movable reports whether an application's API may listen on another port than the default
// one: only the child of this node, which is told, would find it.
func (c Config) movable(a AppEntry, port Port) bool {
	return !port.Given && len(c.App.Command) > 0 && a.ID == c.App.ID && !c.Cluster.joining()
}

// tenant is the node as one of its applications sees it: components that are meant for
// others do not exist.
type tenant struct {
	*Node
	entry AppEntry
}

// app is the application, as its services know it.
func (t tenant) app() api.App { return api.App{ID: t.entry.ID, Namespace: t.config.Namespace} }

// StateStore implements api.StateStores.
func (t tenant) StateStore(name string) (*state.Instance, bool) {
	return t.visible(t.Node.StateStore(name))
}

// ActorStore implements api.StateStores.
func (t tenant) ActorStore() (*state.Instance, bool) { return t.visible(t.Node.ActorStore()) }

func (t tenant) visible(i *state.Instance, ok bool) (*state.Instance, bool) {
	if !ok || !i.VisibleTo(t.entry.ID) {
		return nil, false
	}
	return i, true
}

// StateStores implements api.StateStores.
func (t tenant) StateStores() []*state.Instance {
	var out []*state.Instance
	for _, i := range t.Node.StateStores() {
		if i.VisibleTo(t.entry.ID) {
			out = append(out, i)
		}
	}
	return out
}

// address is where the APIs of the application are found.
func (t tenant) address() api.APIAddresses {
	for _, a := range t.addrs.Apps {
		if a.ID == t.entry.ID {
			return api.APIAddresses{HTTP: a.API, GRPC: a.GRPC}
		}
	}
	return api.APIAddresses{}
}

// Describe implements api.NodeInfo.
func (t tenant) Describe() api.Description {
	d := api.Description{RuntimeVersion: t.config.Version, Actors: api.ActorRuntime{Status: "DISABLED"}, Applications: t.applications()}
	if t.ready.Load() { // before that the addresses are being found
		d.API = t.address()
	}
	if a := t.entry.App; a.Port != 0 {
		d.Channel = api.AppChannel{Port: a.Port, Protocol: string(a.Protocol), Address: a.Address, MaxConcurrency: max(a.MaxConcurrency, 0)}
	}
	if set := t.set.Load(); set != nil {
		for _, s := range set.Statuses() {
			if i, isState := set.StateStore(s.Name); s.State != component.Ready || isState && !i.VisibleTo(t.entry.ID) {
				continue
			}
			d.Components = append(d.Components, api.ComponentInfo{Name: s.Name, Type: s.Type, Version: s.Version, Capabilities: s.Capabilities})
		}
	}
	return d
}

// buildAPI opens the applications' listeners at once, each with an API of its own; until the
// components are open they answer health probes and say what is missing.
func (n *Node) buildAPI(ctx context.Context) error {
	for i, a := range n.apps() {
		at, err := n.buildApp(ctx, tenant{n, a}, i == 0)
		if err != nil {
			return err
		}
		if n.addrs.Apps = append(n.addrs.Apps, at); i == 0 {
			n.addrs.API, n.addrs.GRPC = at.API, at.GRPC
		}
	}
	return nil
}

// buildApp serves the APIs of one application; it returns where.
func (n *Node) buildApp(ctx context.Context, t tenant, first bool) (AppAddress, error) {
	at := AppAddress{ID: t.entry.ID}
	flag := "--http-port"
	if !first {
		flag = "httpPort of the application " + at.ID + " in apps:"
	}
	s, err := n.services(t)
	if err != nil {
		return at, err
	}
	if at.API, err = n.buildFace(ctx, t, s, flag); err != nil {
		return at, err
	}
	at.GRPC, err = n.buildGRPC(ctx, t, s, first)
	return at, err
}

// buildFace serves the HTTP API of one application; it returns where.
func (n *Node) buildFace(ctx context.Context, t tenant, s services, flag string) ([]string, error) {
	c := n.config.API
	ls, err := listen.TCP(ctx, listen.Request{Hosts: c.Listen, Port: t.entry.HTTPPort.Number, Flag: flag, Fallback: n.config.movable(t.entry, t.entry.HTTPPort)})
	if err != nil {
		return nil, err
	}
	face, err := apihttp.New(apihttp.Config{
		App: s.app, State: s.state, Secrets: s.secrets, Bindings: s.bindings, Health: s.health, Metadata: s.metadata, Invoke: s.invoke, Shutdown: n.shutdown,
		Tokens: s.tokens, AllowedOrigins: c.AllowedOrigins, AnyHost: exposed(c.Listen),
		MaxBodySize: c.MaxBodySize, RequestTimeout: c.RequestTimeout,
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		closeListeners(ls)
		return nil, err
	}
	var out []string
	for i, l := range ls {
		out = append(out, l.Addr().String())
		s, err := n.serve(ctx, listenerAPI, l, face)
		if err != nil {
			closeListeners(ls[i+1:])
			return nil, err
		}
		n.apis = append(n.apis, s)
	}
	return out, nil
}

func closeListeners(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close() // nobody has used it yet
	}
}
