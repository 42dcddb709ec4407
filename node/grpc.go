package node

import (
	"context"

	"github.com/quorate/quorate/api"
	apigrpc "github.com/quorate/quorate/api/grpc"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
)

// grpcPort is the port of an application's gRPC API, and the setting that says it; false =
// there is none.
func (c Config) grpcPort(first bool, a AppEntry) (Port, string, bool) {
	if first {
		return c.API.GRPC, "--grpc-port", !c.API.GRPCOff
	}
	return a.GRPCPort, "grpcPort of the application " + a.ID + " in apps:", !c.API.GRPCOff && (a.GRPCPort.Given || a.GRPCPort.Number != 0)
}

// services are what both APIs of one application share: a call has the same effect over
// either, and what one sets the other shows.
type services struct {
	app      api.App
	state    *api.State
	secrets  *api.Secrets
	bindings *api.Bindings
	health   *api.Health
	metadata *api.Metadata
	invoke   *api.Invoke
	tokens   *api.Tokens
}

func (n *Node) services(t tenant) (services, error) {
	app, callee := t.app(), n.callee(t.entry.ID)
	tokens, err := n.tokensOf(t.entry)
	return services{
		app:      app,
		state:    api.NewState(app, t, api.Limits{}).Remember(callee, n.calls.parts.Sessions),
		secrets:  api.NewSecrets(app, t),
		bindings: api.NewBindings(app, t, func(name string) *api.Policy { return n.outbound[name] }),
		health:   api.NewHealth(app, t),
		metadata: api.NewMetadata(app, t, api.Limits{}),
		invoke:   api.NewInvoke(callee, n.calls.parts),
		tokens:   tokens,
	}, err
}

// buildGRPC serves the gRPC API of one application; it returns where.
func (n *Node) buildGRPC(ctx context.Context, t tenant, s services, first bool) ([]string, error) {
	port, flag, on := n.config.grpcPort(first, t.entry)
	if !on {
		return nil, nil
	}
	c := n.config.API
	ls, err := listen.TCP(ctx, listen.Request{Hosts: c.Listen, Port: port.Number, Flag: flag, Fallback: n.config.movable(t.entry, port)})
	if err != nil {
		return nil, offerOff(err)
	}
	server, err := apigrpc.New(apigrpc.Config{
		App: s.app, State: s.state, Secrets: s.secrets, Bindings: s.bindings, Health: s.health, Metadata: s.metadata, Invoke: s.invoke, Shutdown: n.shutdown,
		Tokens: s.tokens, MaxBodySize: c.MaxBodySize, RequestTimeout: c.RequestTimeout, MaxConnections: n.mostConnections(listenerAPI),
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		closeListeners(ls)
		return nil, err
	}
	var out []string
	for _, l := range ls {
		out = append(out, l.Addr().String())
		server.Serve(l)
	}
	n.rpcs = append(n.rpcs, server)
	return out, n.closers.Push("grpc api", server.Close)
}

// offerOff adds to a refused port that nobody needs to have this API.
func offerOff(err error) error {
	f, ok := fault.As(err)
	if !ok || f.Code != fault.Unavailable {
		return err
	}
	more := *f
	more.Hint += "; --enable-grpc=false serves no gRPC"
	return &more
}
