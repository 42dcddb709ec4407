package actorhost

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/due"
)

// maxRemote is the maximum number of actor calls in progress from this node to one other node. It is lower than the
// limit for all calls on one connection, so that actor calls cannot block the calls of the replicated store.
const maxRemote = 512

// Options are the dependencies and settings of a Host. All are required, except HostWait and KeepActors.
type Options struct {
	Namespace string
	Port      *peer.Port
	// StoreOf returns the name of the store with the actor state of an application of this node. It returns
	// fault.Unavailable if there is none.
	StoreOf func(app string) (string, error)
	Allow   func(in *invoke.Inbound) error
	Policy  func(actorType string) *resiliency.Policy // from Resiliency documents; it returns nil if there is none
	// Prove reports whether the identity of a calling node proves that the node serves an application. domain is the
	// trust domain of the application.
	Prove       func(at peer.Caller, app api.App) (domain string, ok bool)
	PlaceTime   time.Duration
	HostWait    time.Duration // HostWait and KeepActors: see actors.Options
	KeepActors  bool
	MaxAnswer   int64  // bytes
	HoldingsDir string // where the node remembers which applications may hold actors in memory
	Logger      *slog.Logger

	Registerer prometheus.Registerer
}

// New returns the Host for the actors of this node. Before Connect is called, the Host hosts no actors, and calls to
// actors fail with fault.Unavailable.
func New(o Options) *Host {
	h := &Host{options: o, slots: map[string]chan struct{}{}}
	h.directories = &directories{host: h, known: map[knownKey]knownType{}}
	h.Runtime = actors.NewRuntime(actors.Options{
		Directories: h.directories, Carrier: h, Node: h.node,
		Namespace: invoke.CanonicalNamespace(o.Namespace), NewID: datadir.RandomID, Reminders: reminders{h},
		Plan: newPlan, Allow: o.Allow, Policy: o.Policy, PlaceTime: o.PlaceTime, HostWait: o.HostWait,
		KeepActors: o.KeepActors, MaxAnswer: o.MaxAnswer, Holdings: holdings(o.HoldingsDir),
		Metrics: actors.NewMetrics(o.Registerer), Logger: o.Logger,
	})
	return h
}

// Host hosts and calls the actors of this node. It is safe for concurrent use.
type Host struct {
	*actors.Runtime
	options     Options
	directories *directories
	connected   atomic.Pointer[connection]

	mu    sync.Mutex
	slots map[string]chan struct{} // by server: one element for each call in progress
}

// connection has what a Host needs from the replicated store.
type connection struct {
	store        *raftfsm.Host
	node, server string // ids of this node
	places       *discovery.Catalogue
}

// Connect connects the Host to the replicated store and to the catalogue of application instances. From then on, the
// Host also delivers due reminders from the Raft groups that this node leads.
func (h *Host) Connect(store *raftfsm.Host, places *discovery.Catalogue) {
	id := store.Identity()
	h.connected.Store(&connection{store, id.Node, id.Server, places})
	store.DueWork().Deliver(due.KindReminder, reminders{h})
}

// connection returns what Connect has stored. Before Connect, it returns fault.Unavailable.
func (h *Host) connection() (*connection, error) {
	if c := h.connected.Load(); c != nil {
		return c, nil
	}
	return nil, fault.New(fault.Unavailable, "actors", "the node is starting")
}

// node returns the id of this node, or "" before Connect.
func (h *Host) node() string {
	if c := h.connected.Load(); c != nil {
		return c.node
	}
	return ""
}

// Method returns the peer method by which other nodes call actors of this node.
func (h *Host) Method() peer.Method {
	return peer.Method{Name: actors.Method, Concurrency: maxRemote, Handle: h.serve}
}

func (h *Host) serve(ctx context.Context, r peer.Request) ([]byte, error) {
	target, c, err := actors.DecodeCall(r.Payload)
	if err != nil {
		return nil, err
	}
	if domain, ok := h.options.Prove(r.From.Caller, c.Caller.App); ok {
		c.Caller.Proven, c.Caller.TrustDomain = true, domain
	}
	answer, err := h.Take(ctx, target, c)
	if err != nil {
		return nil, err
	}
	return actors.EncodeAnswer(&answer), nil
}

// Carry implements actors.Carrier.
func (h *Host) Carry(ctx context.Context, to actors.Owner, target api.App, c *actors.Call) (actors.Answer, error) {
	slots := h.slotsOf(to.Server)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return actors.Answer{}, &fault.Error{Code: fault.Overloaded, Op: "actors.Call",
			Msg: "too many calls of actors on node " + to.Node + " are in progress", Hint: "send fewer at a time"}
	}
	out, err := h.options.Port.Client().Call(ctx, to.Server, actors.Method, actors.EncodeCall(target, c))
	if err != nil {
		return actors.Answer{}, err
	}
	return actors.DecodeAnswer(out)
}

func (h *Host) slotsOf(server string) chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slots[server]
	if s == nil {
		s = make(chan struct{}, maxRemote)
		h.slots[server] = s
	}
	return s
}
