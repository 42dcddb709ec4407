package node

import (
	"cmp"
	"path/filepath"

	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/node/actorhost"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/raftfsm"
)

// actorOptions returns the options of the host of actors.
func actorOptions(n *Node) actorhost.Options {
	limit := cmp.Or(n.config.API.MaxBodySize, apihttp.DefaultMaxBodySize)
	if limit < 0 {
		limit = raftfsm.MaxRequest
	}
	return actorhost.Options{
		Namespace: n.config.Namespace, Host: func() *raftfsm.Host { return n.host },
		Node:    func() string { return n.host.Identity().Node },
		Server:  func() string { return n.network.Identity().Server },
		Port:    func() *peer.Port { return n.network.Port() },
		Places:  func() *discovery.Catalogue { return n.catalogue.Places() },
		StoreOf: func(app string) (string, error) { return actorStoreOf(n.components.For(app), app) },
		Allow:   n.calls.Parts().Here.Allow, Policy: n.calls.Actor, Prove: calls.Prove,
		PlaceTime: cmp.Or(n.config.API.RequestTimeout, apihttp.DefaultRequestTimeout), MaxAnswer: limit,
		HoldingsDir: filepath.Join(n.config.Data.Dir, "actors"),
		Logger:      n.deps.Logger, Registerer: n.deps.Registry,
	}
}

// actorStoreOf returns the name of the store of the actors of an application.
func actorStoreOf(c components.Scoped, app string) (string, error) {
	inst, ok := c.ActorStore()
	if !ok {
		return "", &fault.Error{Code: fault.Unavailable, Op: "node.actors",
			Msg:  "no state store has the actor state of " + app,
			Hint: `set metadata actorStateStore: "true" in a component of type state.raft`}
	}
	return inst.Name, nil
}

// hostActors is called when an application of this node accepts calls.
func (s *apiServers) hostActors(app string, ch *appchannel.Channel) {
	if p := ch.Protocol(); p != appchannel.GRPC && p != appchannel.GRPCS {
		s.actors.Returned(app, ch)
	}
}

// openActors asks the applications of this node which actors they host.
func (s *apiServers) openActors() error {
	s.actors.Open()
	return s.closers.Push("actors", s.actors.Close)
}
