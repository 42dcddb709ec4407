package calls

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/remoteinvoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/trust"
)

// Catalogue knows which applications run.
type Catalogue interface {
	// Knows reports whether an instance of an application is known.
	Knows(app api.App) bool
	// SetHealth announces whether an application of this node is healthy.
	SetHealth(app api.App, healthy bool)
	// SetLoad announces how many calls of an application of this node are in flight.
	SetLoad(app api.App, inFlight int)
}

// Network is how calls reach other nodes.
type Network interface {
	// Port returns the port for calls between nodes.
	Port() *peer.Port
	// Advertised returns the address of this node for other nodes.
	Advertised() netip.Addr
}

// App is an application of this node that receives calls.
type App struct {
	ID             string
	Port           int
	Protocol       string
	Address        string
	MaxConcurrency int // calls at a time; 0 or less = no limit
	Health         appchannel.Health
	OptionsTimeout time.Duration // of the request for its input bindings; 0 = 3 s
	Observer       appchannel.Observer
}

// Spans creates the tracing spans of calls, of binding operations and of API requests. Tracer implements it.
type Spans interface {
	invoke.Tracer
	api.BindingTracer
	api.RequestTracer
}

// Options are the dependencies and settings of Calls. Catalogue, Network, Tracer, Logger and Registerer are required.
type Options struct {
	Namespace  string
	Apps       []App             // of this node, those that have a port
	Token      string            // sent with each call to an application; empty = none
	MaxMessage int64             // bytes
	MaxHead    int64             // bytes of the headers of an answer
	Memory     atmostonce.Memory // for the headers of answers; nil = no bound
	NoSessions bool              // do not merge session tokens of callers, for tests

	Catalogue  Catalogue
	Network    Network
	Tracer     Spans
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Observer   invoke.Observer // nil = none
	// Returned is called when an application accepts calls. It must not block. nil = not called.
	Returned func(app string, ch *appchannel.Channel)
}

// Calls transports the calls to applications. It is safe for concurrent use.
type Calls struct {
	opts     Options
	parts    invoke.Parts
	sessions merger
	channels map[api.App]*appchannel.Channel     // of the applications that are called; written by Open
	client   atomic.Pointer[remoteinvoke.Client] // nil until Connect
	server   *remoteinvoke.Server
	others   atomic.Pointer[otherRules]
	rules    atomic.Pointer[Rules]                  // nil until SetRules
	filters  atomic.Pointer[[]*middleware.Instance] // of calls to HTTP applications; nil = none
}

// otherRules has the Resiliency policies for components, by name, and for actors, by type.
type otherRules struct{ inbound, outbound, actors map[string]*resiliency.Policy }

// New returns Calls that are not started. Open and Connect start them.
func New(o Options) (*Calls, error) {
	c := &Calls{opts: o, channels: map[api.App]*appchannel.Channel{}}
	metrics, err := invoke.NewMetrics(o.Registerer, c.isKnown)
	if err != nil {
		return nil, fault.Wrap(err, "node.Open", "registering metrics")
	}
	metrics.Report(o.Observer)
	var merge api.SessionMerger
	if !o.NoSessions {
		merge = &c.sessions
	}
	c.others.Store(&otherRules{})
	sessions := api.NewSessions(merge)
	c.parts = invoke.Parts{
		Externals: &invoke.Externals{Memory: o.Memory},
		Routes:    &invoke.Routes{}, Sessions: sessions, Policies: resiliency.NewPolicies(),
		Here: invoke.NewCallee(sessions, metrics, o.Tracer), Tracer: o.Tracer, Metrics: metrics, Logger: o.Logger,
	}
	return c, nil
}

// Parts returns the dependencies of the invocation services. All applications of this node share them.
func (c *Calls) Parts() invoke.Parts { return c.parts }

// BindingTracer returns the source of tracing spans for operations of bindings.
func (c *Calls) BindingTracer() api.BindingTracer { return c.opts.Tracer }

// RequestTracer returns the source of tracing spans for requests of the API.
func (c *Calls) RequestTracer() api.RequestTracer { return c.opts.Tracer }

// Externals returns the servers outside of the cluster that applications may call.
func (c *Calls) Externals() *invoke.Externals { return c.parts.Externals }

// Callee returns the name under which other nodes call an application of this node.
func (c *Calls) Callee(id string) api.App {
	return api.App{ID: id, Namespace: invoke.CanonicalNamespace(c.opts.Namespace)}
}

// Channel returns the channel to an application of this node, or nil if the application cannot be called.
func (c *Calls) Channel(id string) *appchannel.Channel { return c.channels[c.Callee(id)] }

// Policy returns the Resiliency policy for calls to an application.
func (c *Calls) Policy(app api.App) *resiliency.Policy { return c.parts.Policies.For(app) }

// Channels returns the channels to the applications of this node that can be called. The caller must not change the
// map.
func (c *Calls) Channels() map[api.App]*appchannel.Channel { return c.channels }

// WhyUnhealthy returns the reason why an application of this node does not accept calls. It returns "" if the
// application accepts calls.
func (c *Calls) WhyUnhealthy(app api.App) string {
	if ch := c.channels[app]; ch != nil {
		if ok, why := ch.Healthy(); !ok {
			return why
		}
	}
	return ""
}

// isKnown reports whether an application runs on any known node. Metrics have no series for other applications.
func (c *Calls) isKnown(app api.App) bool {
	_, ours := c.channels[app]
	return ours || c.opts.Catalogue.Knows(app)
}

// Open opens the channels to the applications of this node, and starts to probe the applications.
func (c *Calls) Open() error {
	for _, a := range c.opts.Apps {
		app := c.Callee(a.ID)
		var ch *appchannel.Channel
		var err error
		ch, err = appchannel.New(appchannel.Options{
			Protocol: appchannel.Protocol(a.Protocol), Address: a.Address, Port: a.Port,
			MaxConcurrency: a.MaxConcurrency, Token: c.opts.Token,
			Health: a.Health, OptionsTimeout: a.OptionsTimeout, MaxMessage: c.opts.MaxMessage,
			MaxHead: c.opts.MaxHead, Memory: c.opts.Memory,
			Logger: c.opts.Logger.With("app_id", a.ID), Observer: a.Observer,
			OnHealth: func(healthy bool) {
				c.opts.Catalogue.SetHealth(app, healthy)
				if healthy && c.opts.Returned != nil {
					c.opts.Returned(a.ID, ch)
				}
			},
			OnLoad: func(inFlight int) { c.opts.Catalogue.SetLoad(app, inFlight) },
		})
		if err != nil {
			return err
		}
		c.channels[app] = ch
		ch.Open()
	}
	return nil
}

// Close ends the channels to the applications.
func (c *Calls) Close() error {
	var errs []error
	for _, ch := range c.channels {
		errs = append(errs, ch.Close())
	}
	return errors.Join(errs...)
}

// merger merges session tokens with the replicated store. Until the store is open, there are no tokens, and nothing is
// merged.
type merger struct {
	store atomic.Pointer[api.SessionMerger]
}

// MergeSessions implements api.SessionMerger.
func (m *merger) MergeSessions(a, b string) (string, bool) {
	if store := m.store.Load(); store != nil {
		return (*store).MergeSessions(a, b)
	}
	return "", false
}

// AnswerSession implements api.SessionMerger.
func (m *merger) AnswerSession(own, sent, got string) (string, bool) {
	if store := m.store.Load(); store != nil {
		return (*store).AnswerSession(own, sent, got)
	}
	return "", false
}

// ShareSession implements api.SessionMerger.
func (m *merger) ShareSession(token, sent string) string {
	if store := m.store.Load(); store != nil {
		return (*store).ShareSession(token, sent)
	}
	return token
}

// VerifySession implements api.SessionMerger.
func (m *merger) VerifySession(ctx context.Context, own, given string) (string, error) {
	if store := m.store.Load(); store != nil {
		return (*store).VerifySession(ctx, own, given)
	}
	return own, nil
}

// SetSessions sets the merger of session tokens. Call it before the API serves requests for a state store.
func (c *Calls) SetSessions(m api.SessionMerger) { c.sessions.store.Store(&m) }

// Connect enables calls between nodes. From then on, other nodes can call the applications of this node, and this node
// can call applications on other nodes. The parameter places chooses the instance for each call.
func (c *Calls) Connect(places invoke.Places) {
	port := c.opts.Network.Port()
	client := remoteinvoke.NewClient(remoteinvoke.ClientConfig{Dial: port.Tunnel,
		Self: c.opts.Network.Advertised, MaxHead: c.opts.MaxHead, Memory: c.opts.Memory})
	c.client.Store(client)
	c.parts.Routes.Open(places, client)
	c.server = remoteinvoke.NewServer(remoteinvoke.ServerConfig{Listener: port.Tunnels(), Callee: c.parts.Here,
		Prove: Prove, Logger: c.opts.Logger})
	c.server.Open()
}

// CloseServer stops serving calls of other nodes.
func (c *Calls) CloseServer(ctx context.Context) error { return c.server.Close(ctx) }

// Disconnect reverses Connect.
func (c *Calls) Disconnect(ctx context.Context) error {
	c.client.Load().Close()
	return c.server.Close(ctx)
}

// Renew makes new calls to other nodes use new connections, with the current certificate of this node. The old
// connections are closed when the calls in progress on them have finished.
func (c *Calls) Renew() {
	if client := c.client.Load(); client != nil {
		client.Renew()
	}
}

// Prove reports whether the calling node has proven with its certificate that it runs the given application. If so,
// Prove also returns the trust domain of the application.
func Prove(at peer.Caller, app api.App) (domain string, ok bool) {
	if !at.Proven {
		return "", false
	}
	for _, id := range at.Apps {
		a, ok := trust.ParseApp(id)
		if ok && a.ID == app.ID && invoke.CanonicalNamespace(a.Namespace) == app.Namespace {
			return a.TrustDomain, true
		}
	}
	return "", false
}
