package node

import (
	"cmp"
	"path/filepath"
	"slices"

	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
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
		Namespace: n.config.Namespace, Port: n.network.Port(),
		StoreOf: func(app string) (string, error) { return actorStoreOf(n.components.For(app), app) },
		Allow:   n.calls.Parts().Here.Allow, Policy: n.calls.Actor, Prove: calls.Prove,
		PlaceTime: cmp.Or(n.config.API.RequestTimeout, apihttp.DefaultRequestTimeout),
		HostWait:  n.config.API.HostWait, KeepActors: n.config.API.KeepActors, MaxAnswer: limit,
		HoldingsDir: filepath.Join(n.config.Data.Dir, "actors"),
		Logger:      n.deps.Logger, Registerer: n.deps.Registry,
	}
}

// actorStoreOf returns the name of the state store for the actor state of an application. c has the components that the
// application can use. actorStoreOf returns fault.Unavailable if none of them is such a store.
func actorStoreOf(c components.Scoped, app string) (string, error) {
	inst, ok := c.ActorStore()
	if !ok {
		return "", &fault.Error{Code: fault.Unavailable, Op: "node.actors",
			Msg:  "no state store has the actor state of " + app,
			Hint: `set metadata actorStateStore: "true" in a component of type state.raft`}
	}
	return inst.Name, nil
}

// hostActors lets the node request the actor types of an application, unless this request is disabled or unnecessary.
// It is called each time the application begins to accept calls.
func (s *apiServers) hostActors(app string, ch *appchannel.Channel) {
	if s.asksTypes(app, ch) {
		s.actors.Returned(app, ch)
	}
}

// asksTypes reports whether the node requests the actor types of an application with GET /dapr/config. The node sends
// this request unless the settings disable it, or the application uses gRPC and therefore registers its types itself.
func (s *apiServers) asksTypes(app string, ch *appchannel.Channel) bool {
	for _, e := range s.apps {
		if e.ID == app && slices.Contains(e.InitOff, InitConfig) {
			return false
		}
	}
	p := ch.Protocol()
	return p != appchannel.GRPC && p != appchannel.GRPCS
}

// Registering implements status.Actors. It returns true from the start until the first attempt to register the actor
// types of an application has ended, with or without success. It returns false if the node does not request the types.
func (s *apiServers) Registering(app string, ch *appchannel.Channel) bool {
	return ch != nil && s.asksTypes(app, ch) && !s.actors.Tried(app)
}

// openActors lets the node request the actor types of its applications. It also adds a closer that stops the actors.
func (s *apiServers) openActors() error {
	s.actors.Open()
	return s.closers.Push("actors", s.actors.Close)
}
