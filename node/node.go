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

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/node/actorhost"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/catalogue"
	"github.com/quorate/quorate/node/clusterctl"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/jobs"
	"github.com/quorate/quorate/node/network"
	"github.com/quorate/quorate/node/status"
	"github.com/quorate/quorate/raftfsm"
)

// Deps are the dependencies of a node. Some come from the process, such as the logger. Others exist so that tests can
// replace them. The settings of the node are in Config instead.
type Deps struct {
	Logger *slog.Logger // required
	// Fatal is called when this replica can no longer be trusted, for instance because its disk failed. It must end
	// the process and not return, because such a replica must not answer again. Everything that the replica has
	// acknowledged is on disk. Fatal may be called from any goroutine. Required.
	Fatal func(error)
	// Exit ends the process, for a forced shutdown through the API. Required.
	Exit func(code int)
	Env  func(name string) (string, bool) // looks up environment variables. Required
	// Environ returns the environment as "NAME=value", for the secret store local.env; nil = not available.
	Environ func() []string
	Now     func() time.Time // nil = time.Now
	// Step is called before and after each step of the store's disk work, with the name of the step; nil = not
	// called. Crash tests use it.
	Step func(step string)
	// Dial opens connections to the peer ports of other nodes; nil = TCP. Tests use it to observe or block them.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// NoSessions disables session consistency between a caller and the called application. A test uses it to show
	// the difference.
	NoSessions bool
	// Registry collects the metrics of all subsystems for /metrics; nil = a new one.
	Registry Registry

	recent  *logadapt.Recent // the last warnings of Logger
	records *logadapt.Recent // the last records of Logger
}

// keepWarnings is the number of warnings and errors, of at most 1 KiB each, that a node keeps in memory. Older ones are
// dropped.
const keepWarnings = 50

// keepRecords is the number of log records, of at most 1 KiB each, that a node keeps in memory for debug bundles. Older
// ones are dropped.
const keepRecords = 150

// Registry registers and gathers metrics. *prometheus.Registry implements it.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Node is a running node. Safe for concurrent use.
type Node struct {
	config  Config
	place   place
	deps    Deps
	closers lifecycle.Stack
	stopper stopper
	addrs   Addresses

	credentials *credentials.Credentials // nil = traffic between nodes is not secured
	network     *network.Network
	catalogue   *catalogue.Catalogue
	calls       *calls.Calls
	components  *components.Components
	status      *status.Reporter
	apis        *apiServers
	host        *raftfsm.Host
	control     *clusterctl.Controller
}

// Open starts a node with the configuration c. It returns when the node serves requests. The context ctx limits only
// the start. If the start fails, Open closes everything that it has opened.
func Open(ctx context.Context, c Config, d Deps) (*Node, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return open(ctx, c, d, place{})
}

// place describes how a node shares a data directory with other nodes of the same user on this host. The zero value
// means that the directory is not shared.
type place struct {
	notes string // directory of the notes of live nodes
	front *Node  // the node of this process that serves the applications; nil = this node does
}

// frontStatus describes the other node of this process that serves the applications. It returns nil if there is no such
// node.
func (p place) frontStatus() *schema.FrontNode {
	if p.front == nil {
		return nil
	}
	return &schema.FrontNode{DataDir: p.front.addrs.DataDir, Apps: idsOf(p.front.apps())}
}

// open is Open without validation.
func open(ctx context.Context, c Config, d Deps, p place) (*Node, error) {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	d.recent = logadapt.NewRecent(slog.LevelWarn, keepWarnings)
	d.records = logadapt.NewRecent(slog.LevelDebug, keepRecords)
	d.Logger = slog.New(d.records.Handler(d.recent.Handler(d.Logger.Handler())))
	n := &Node{config: c, place: p, deps: d, stopper: stopper{stopping: make(chan struct{}), log: d.Logger,
		exit: d.Exit}}
	if err := n.build(ctx); err != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Grace)
		defer cancel()
		return nil, errors.Join(err, n.Close(grace))
	}
	n.status.SetStarted()
	return n, nil
}

// Addresses returns the addresses of the node. They do not change.
func (n *Node) Addresses() Addresses { return n.addrs }

// Admin returns the operations of the admin API.
func (n *Node) Admin() adminapi.Node {
	return admin{n.status, n.catalogue, n.control, n.control, n.doctor(), backupService{n.host, n.config, n.deps},
		n.apis.remote, lockService{n.host, n.components.LockStores, n.deps.Logger},
		jobs.Admin{Jobs: &n.apis.jobs, Logger: n.deps.Logger}, newTopicService(n), callService{callLogFor(n)},
		actorhost.Admin{Host: n.apis.actors, Logger: n.deps.Logger}, workflowAdmin(n), n.control, &n.apis.consoleLinks,
		newOverview(n), debugger{n}, configurationAdmin{n.components}}
}

// Wait blocks until the node should stop. It returns nil when the API has requested a stop, or when ctx has ended. In
// the second case, it blocks for up to Config.BlockShutdown longer.
//
// If the application is a child process, it ends after Wait has returned. Therefore Wait first waits for the running
// turns of its actors, for at most Config.Grace, and gives the actors to other nodes.
//
// If another node with the same node id was started earlier, Wait returns an error. This node must then be closed.
func (n *Node) Wait(ctx context.Context) error {
	select {
	case <-n.stopper.stopping:
	case <-ctx.Done():
		n.blockShutdown()
	case err := <-n.network.Gossip().Duplicate():
		return err
	}
	if len(n.config.App.Command) > 0 && n.place.front == nil {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.config.Grace)
		defer cancel()
		n.apis.actors.Drain(limit)
	}
	return nil
}

// blockShutdown delays the stop of the node. It returns when one of the following happens:
//
//   - Config.BlockShutdown has passed.
//   - The API requests a stop.
//   - The first application is unhealthy.
//
// If the application is a child process of this node, blockShutdown returns at once, because the application stops
// together with the node.
func (n *Node) blockShutdown() {
	d := n.config.BlockShutdown
	if d <= 0 || len(n.config.App.Command) > 0 {
		return
	}
	n.deps.Logger.Info("the node keeps serving before it stops (--block-shutdown-duration)", "at_most", d)
	over := time.NewTimer(d)
	defer over.Stop()
	look := time.NewTicker(unhealthyLook)
	defer look.Stop()
	app := n.calls.Channel(n.config.App.ID)
	for {
		select {
		case <-over.C:
			return
		case <-n.stopper.stopping:
			return
		case <-look.C:
		}
		if app == nil {
			continue
		}
		if healthy, why := app.Healthy(); !healthy {
			n.deps.Logger.Info("the application is unhealthy, so the node stops", "reason", why)
			return
		}
	}
}

// unhealthyLook is the interval at which blockShutdown checks the health of the application.
const unhealthyLook = 100 * time.Millisecond

// Close stops all parts of the node in the reverse order of the start. It stops waiting for them when ctx ends. Close
// may be called more than once. After a forced shutdown, Close calls Deps.Exit.
func (n *Node) Close(ctx context.Context) error {
	n.stopper.Stop()
	n.status.SetStopping() // fails readiness before anything is closed
	if n.apis != nil {
		n.apis.start.Open()
	}
	err := n.closers.Close(ctx)
	if n.stopper.forced.Load() {
		n.stopper.exit(1)
	}
	return err
}

// stopper makes Node.Wait return when a stop is requested.
type stopper struct {
	stopping chan struct{} // closed by Stop
	once     sync.Once
	log      *slog.Logger
	exit     func(code int)
	forced   atomic.Bool
}

// Stop makes Wait return, so that the caller of Wait closes the node.
func (s *stopper) Stop() { s.once.Do(func() { close(s.stopping) }) }

// shutdown stops the node after a shutdown request over the API. If force is true, the process exits with code 1 when
// the node is closed, and after forcedExit at the latest. Clients of Dapr expect this.
func (s *stopper) shutdown(force bool) {
	if force {
		s.log.Warn("ended at once through the API")
		s.forced.Store(true)
		time.AfterFunc(forcedExit, func() { s.exit(1) })
	}
	s.Stop()
}

// forcedExit is the maximum time between a request for a forced shutdown and the end of the process. It allows the node
// to send the answer and to close.
const forcedExit = 100 * time.Millisecond
