package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	apigrpc "github.com/quorate/quorate/api/grpc"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
)

// Deps are what a node is given rather than told. Logger is required.
type Deps struct {
	Logger *slog.Logger
	// Fatal is told when this replica can no longer be trusted, for instance because its
	// disk failed. It must end the process and not return: a replica that cannot trust its
	// disk or memory must not answer once more, and what it acknowledged is on disk. Called
	// from any goroutine. Required.
	Fatal func(error)
	// Exit ends the process, for a shutdown that is forced through the API. Required.
	Exit func(code int)
	Env  func(name string) (string, bool) // looks up environment variables. Required
	// Environ lists the environment as "NAME=value", for a secret store that shows it; nil =
	// it cannot be listed.
	Environ func() []string
	Now     func() time.Time // nil = time.Now
	// Step is called before and after each step of the store's own disk work, with its name,
	// for crash tests; nil = nothing.
	Step func(step string)
	// Dial opens connections to the peer ports of other nodes, for tests that watch or hinder
	// them; nil = TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// NoSessions leaves out what lets an application that is called see what its caller wrote:
	// a test shows what that is good for.
	NoSessions bool
	// Registry takes the metrics of all subsystems and is what /metrics serves; nil = a new one.
	Registry Registry
}

// Registry registers metrics and gathers them. *prometheus.Registry is one.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Node is a running node. Safe for concurrent use.
type Node struct {
	config      Config
	place       place
	deps        Deps
	log         *slog.Logger
	started     time.Time
	registry    Registry
	connections connections
	closers     lifecycle.Stack

	addrs  Addresses
	apis   []*apihttp.Server
	rpcs   []*apigrpc.Server
	tokens *api.Tokens // of the node, for every application without one of its own
	host   *raftfsm.Host
	set    atomic.Pointer[loader.Set] // nil until all components are open
	ready  atomic.Bool

	credentials   *credentials // nil = traffic between nodes is not secured
	port          *peer.Port
	peerListeners []net.Listener
	transportsMu  sync.Mutex
	transports    []*peer.Transport // guarded by transportsMu: groups are opened at a time
	self          atomic.Pointer[peer.Identity]
	gossip        atomic.Pointer[membership.Gossip]   // nil until it is open
	catalogue     atomic.Pointer[discovery.Catalogue] // nil until the host is open
	reconciler    *reconciler
	waitingFor    atomic.Pointer[string] // what keeps this node out of a cluster
	inside        atomic.Bool            // it has been a working part of one

	calls    invocation
	inputs   atomic.Pointer[[]*api.Inputs]
	inbound  map[string]*api.Policy // by binding; written before the components are in force
	outbound map[string]*api.Policy

	stop chan struct{} // closed when the API asked the node to stop
	once sync.Once
}

// Open builds a node from c and returns when it serves. ctx bounds the start, not the
// life of the node. When it fails, what was started is closed again; errors name the
// cause and the mend.
func Open(ctx context.Context, c Config, d Deps) (*Node, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return open(ctx, c, d, place{})
}

// place is what a node is among those of its user on one host; zero = it does not know them.
type place struct {
	notes string // directory of the notes of live nodes
	bare  bool   // it serves no application
}

// open is Open without the checks.
func open(ctx context.Context, c Config, d Deps, p place) (*Node, error) {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	n := &Node{config: c, place: p, deps: d, log: d.Logger, started: d.Now(), registry: d.Registry, stop: make(chan struct{})}
	if err := n.build(ctx); err != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Grace)
		defer cancel()
		return nil, errors.Join(err, n.Close(grace))
	}
	n.ready.Store(true)
	return n, nil
}

// Addresses tells where the node is found. It does not change.
func (n *Node) Addresses() Addresses { return n.addrs }

// Wait returns nil when the API asked the node to stop or ctx ended, and an error when
// another node runs under this one's id and has done so for longer.
func (n *Node) Wait(ctx context.Context) error {
	select {
	case <-n.stop:
	case <-ctx.Done():
	case err := <-n.gossip.Load().Duplicate():
		return err
	}
	return nil
}

// shutdown asks whoever waits to close the node; with force the process ends shortly
// after, as clients of the existing API expect.
func (n *Node) shutdown(force bool) {
	if force {
		n.log.Warn("ended at once through the API")
		time.AfterFunc(forcedExit, func() { n.deps.Exit(1) })
	}
	n.once.Do(func() { close(n.stop) })
}

// forcedExit lets the answer to a forced shutdown leave first.
const forcedExit = 100 * time.Millisecond

// Close stops everything in the opposite order of the start; ctx bounds it. Idempotent.
func (n *Node) Close(ctx context.Context) error {
	n.once.Do(func() { close(n.stop) })
	return n.closers.Close(ctx)
}
