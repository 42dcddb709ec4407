package node

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	adminapi "github.com/quorate/quorate/api/admin"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/tracing"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node/actorhost"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/catalogue"
	"github.com/quorate/quorate/node/clusterctl"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/doctor"
	"github.com/quorate/quorate/node/inputs"
	"github.com/quorate/quorate/node/network"
	"github.com/quorate/quorate/node/remoteadmin"
	"github.com/quorate/quorate/node/status"
	"github.com/quorate/quorate/node/subscriptions"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	raftworkflows "github.com/quorate/quorate/raftfsm/workflows"
)

// build starts the subsystems one after the other. Each step also registers closers. When the node stops, the closers
// run in the reverse order.
func (n *Node) build(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		n.readDeclared,    // the Configuration resources
		n.buildNetwork,    // reports invalid credential files before the node writes to the disk
		n.buildMetrics,    // early, so that a slow start can be observed
		n.buildMemory,     // memory of requests in progress
		n.buildCalls,      // tracing, and the channels to the applications
		n.buildAPI,        // from here on, health reports what the start waits for
		n.listenPeer,      // from here on, the address of the peer port is known
		n.buildHost,       // the replicated store
		n.openCatalogue,   // which applications run where
		n.identify,        // the certificate of this node, and its identity on the peer port
		n.openGossip,      // the members and their addresses
		n.buildControl,    // the cluster controller
		n.serveNodes,      // what other nodes may call
		n.openPeer,        // from here on, other nodes can call
		n.connectCalls,    // calls to applications from node to node
		n.buildAdmin,      // its socket is in the directory that the host has locked
		n.buildConsole,    // the web console
		n.buildComponents, // from here on the API serves
		n.buildLoops,      // finds the cluster and manages its groups
		n.buildBackups,    // writes scheduled backups while this node leads
		n.buildDrain,      // requests in progress end before the parts above close
		n.serveApps,       // from here on, other nodes may call the applications
		n.buildInputs,     // delivers events of input bindings
		func(context.Context) error { return n.apis.openActors() }, // gives actors up first when the node stops
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// apps returns every application that this node serves. It returns nil if another node in the same process serves the
// applications.
func (n *Node) apps() []AppEntry {
	if n.place.front != nil {
		return nil
	}
	return n.config.apps()
}

// loop runs f in a new goroutine. It also registers a closer with the given name. The closer cancels the context of f
// and waits until f has returned.
func (n *Node) loop(name string, f func(ctx context.Context)) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	return n.closers.Push(name, func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	})
}

// buildNetwork reads the credentials and creates the peer port, without listening.
func (n *Node) buildNetwork(context.Context) (err error) {
	c := n.config.Cluster
	if !n.config.Security.secured() && exposed([]string{c.Bind}) {
		n.deps.Logger.Warn("traffic between nodes is neither encrypted nor authenticated: anyone who can reach the "+
			"gossip and peer ports can read and change everything", "bind_address", c.Bind)
	}
	n.credentials, err = credentials.Open(n.config.Security.files(),
		credentials.Options{Logger: n.deps.Logger, Registerer: n.deps.Registry, Now: n.deps.Now})
	if err != nil {
		return err
	}
	n.network, err = network.New(network.Options{
		Cluster: c.Name, Bind: c.Bind, Advertise: c.Advertise, Gossip: c.port(c.Gossip), Peer: c.port(c.Peer),
		Join: c.Join, Notes: n.place.notes, Fast: c.Fast, Sidecar: c.sidecar(), Partitions: uint32(c.Partitions),
		Voters: uint32(c.Voters), BootstrapExpect: c.BootstrapExpect, Version: n.config.Version,
		Credentials: n.credentials, Dial: n.deps.Dial, Logger: n.deps.Logger, Registerer: n.deps.Registry,
		Fatal: n.deps.Fatal,
	})
	return err
}

// buildMetrics registers the metrics of the process. Unless the settings disable metrics, it also opens the listener
// from which Prometheus reads all metrics.
func (n *Node) buildMetrics(ctx context.Context) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_build_info",
		Help:        "Always 1; the labels say which version runs, and in which cluster.",
		ConstLabels: prometheus.Labels{"version": n.config.Version, "cluster": n.config.Cluster.Name}})
	info.Set(1)
	n.deps.Registry.MustRegister(info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := n.openDaprNames(); err != nil {
		return err
	}
	c := n.config.Metrics
	off := !metricsOf(n.apis.measured).Enabled
	if c.Off || off && !n.config.Dapr {
		return nil
	}
	n.apis.metricsOff.Store(off)
	ls, err := listen.TCP(ctx, listen.Request{Hosts: []string{c.Listen}, Port: c.Port.Number,
		Fallback: !c.Port.Given && !n.config.Cluster.joining(), Flag: "--metrics-port"})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	page := promhttp.HandlerFor(n.deps.Registry, promhttp.HandlerOpts{Registry: n.deps.Registry})
	mux.Handle("GET /metrics", page)
	mux.Handle("GET /{$}", page)
	mux.Handle("GET "+scrapeTargetsPath, scrapeTargets{n.config.Cluster.Name, n.network})
	n.addrs.Metrics = ls[0].Addr().String()
	handler := http.Handler(mux)
	if !exposed([]string{c.Listen}) {
		handler = apihttp.LocalHost(mux, "scrape the metrics by address, or set --metrics-listen-address to "+
			"one that is not loopback")
	}
	_, err = n.apis.serve(ctx, listenerMetrics, ls[0], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.apis.metricsOff.Load() {
			http.Error(w, "spec.metrics.enabled of the Configuration is false", http.StatusNotFound)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	return err
}

// buildMemory starts the loop that returns memory to the operating system after a burst of requests.
func (n *Node) buildMemory(context.Context) error {
	return n.loop("memory", func(ctx context.Context) { n.apis.memory.giveBack(ctx.Done(), freeMemory) })
}

// buildCalls sets up tracing, opens the channels to the applications of this node, and starts to probe the
// applications.
func (n *Node) buildCalls(ctx context.Context) error {
	c := n.config
	n.apis.traced = exportOf(n.apis.declared.Tracing)
	t, err := tracing.Open(ctx, n.apis.tracingOptions(n.apis.traced))
	if err != nil {
		return err
	}
	n.apis.tracer = t
	if err := n.closers.Push("traces", t.Close); err != nil {
		return err
	}
	n.catalogue = catalogue.New(catalogue.Options{
		Network: n.network, Namespace: c.Namespace, Joins: c.Cluster.joining() || n.place.notes != "",
		Logger: n.deps.Logger, Registerer: n.deps.Registry,
	})
	token, _ := n.deps.Env("APP_API_TOKEN")
	o := calls.Options{
		Namespace: c.Namespace, Token: token, MaxMessage: c.API.MaxBodySize, NoSessions: n.deps.NoSessions,
		MaxHead: c.API.maxHead(), Memory: n.apis.memory.answers,
		Catalogue: n.catalogue, Network: n.network, Tracer: calls.Tracer{Tracer: t}, Logger: n.deps.Logger,
		Registerer: n.deps.Registry, Observer: n.apis.dapr.invocation(), Returned: n.apis.hostActors,
	}
	for _, a := range n.apps() {
		if a.Port != 0 {
			o.Apps = append(o.Apps, calls.App{ID: a.ID, Port: a.Port, Protocol: string(a.Protocol),
				Address: a.Address, MaxConcurrency: a.MaxConcurrency, Health: appchannel.Health(a.Health),
				OptionsTimeout: a.OptionsTimeout, Observer: n.apis.dapr.channel(a.ID)})
		}
	}
	if n.calls, err = calls.New(o); err != nil {
		return err
	}
	n.components = &components.Components{}
	if n.place.front != nil {
		n.components = n.place.front.components // operators see them through the admin API of this node
	}
	n.apis.actors = actorhost.New(actorOptions(n))
	n.status = status.New(status.Options{
		Version: c.Version, Cluster: c.Cluster.Name, Role: string(c.Cluster.Role), Sidecar: c.Cluster.sidecar(),
		Namespace: c.Namespace,
		Apps:      idsOf(n.apps()), Components: n.components, Channels: n.calls, Actors: n.apis, Now: n.deps.Now,
		Front: n.place.frontStatus(),
	})
	return errors.Join(n.closers.Push("channels to the applications", func(context.Context) error {
		return n.calls.Close()
	}), n.calls.Open())
}

// buildAPI opens the APIs of all applications.
func (n *Node) buildAPI(ctx context.Context) error {
	n.prepareAPI()
	n.apis.subscribers = subscriptions.New(subscriptions.Options{Namespace: n.config.Namespace, Source: n.components,
		Stores: n.components, Apps: n.calls, Logger: n.deps.Logger, Observer: n.apis.dapr.messages,
		Silent: func(app string) bool {
			return slices.ContainsFunc(n.apps(), func(a AppEntry) bool {
				return a.ID == app && slices.Contains(a.InitOff, InitSubscribe)
			})
		}})
	for i, a := range n.apps() {
		at, err := n.apis.open(ctx, appParts{entry: a, calls: n.calls, components: n.components.For(a.ID),
			status: n.status, catalogue: n.catalogue, actors: n.apis.actors, registration: n.apis}, i == 0)
		if err != nil {
			return err
		}
		if n.addrs.Apps = append(n.addrs.Apps, at); i == 0 {
			n.addrs.API, n.addrs.GRPC = at.API, at.GRPC
		}
	}
	return nil
}

// listenPeer binds the peer port, so that its address is known. The node accepts connections only after openPeer.
func (n *Node) listenPeer(ctx context.Context) error {
	if err := n.closers.Push("peer port", func(context.Context) error { return n.network.ClosePort() }); err != nil {
		return err
	}
	return n.network.Listen(ctx)
}

// clusterView implements raftfsm.Cluster.
type clusterView struct {
	*network.Network
	*status.Reporter
}

// buildHost opens the replicated store.
func (n *Node) buildHost(ctx context.Context) error {
	c := n.config
	host, err := raftfsm.Open(ctx, raftfsm.Options{
		Dir: c.Data.Dir, NodeID: c.Cluster.NodeID, DefaultID: c.Cluster.defaultID(), Sidecar: c.Cluster.sidecar(),
		Partitions: uint32(c.Cluster.Partitions), Cluster: clusterView{n.network, n.status},
		Engine:    raftlog.Engine(c.Data.LogStore),
		Bootstrap: !c.Cluster.joining(), MinFree: uint64(c.Data.MinFree), Transport: n.network.Transport,
		Peers:  n.network.Port().Client(),
		Timing: c.Cluster.Timing, Bounds: c.Cluster.Bounds, Logger: n.deps.Logger, Registerer: n.deps.Registry,
		Fatal: n.deps.Fatal, Now: n.deps.Now, Step: n.deps.Step,
	})
	if err != nil {
		return err
	}
	n.host, n.addrs.Node, n.addrs.DataDir = host, host.Identity().Node, c.Data.Dir
	n.calls.SetSessions(host)
	return n.closers.Push("replicated store", func(context.Context) error {
		n.network.Interrupt() // otherwise Raft waits for requests to servers that are down
		return host.Close()
	})
}

// openCatalogue opens the catalogue of applications. The data directory must be open, because the catalogue needs the
// node id.
func (n *Node) openCatalogue(context.Context) error {
	if err := n.catalogue.Open(n.host.Identity(), n.calls.WhyUnhealthy); err != nil {
		return err
	}
	return n.closers.Push("catalogue of applications", func(context.Context) error { return n.catalogue.Close() })
}

// buildControl creates the cluster controller. It also passes the host, the network and the controller to the status
// reporter.
func (n *Node) buildControl(context.Context) error {
	c := n.config.Cluster
	n.control = clusterctl.New(clusterctl.Options{
		Host: n.host, Network: n.network, Stopper: &n.stopper,
		Name: c.Name, Sidecar: c.sidecar(), Join: c.Join, Shared: n.place.notes != "",
		BootstrapExpect: c.BootstrapExpect,
		Voters:          c.Voters, Limits: c.Limits, DataDir: n.config.Data.Dir, JoinHint: n.credentials.JoinHint(),
		Logger: n.deps.Logger, Registerer: n.deps.Registry, Now: n.deps.Now,
	})
	n.status.SetParts(status.Parts{Host: n.host, Network: n.network, Control: n.control, Security: n.credentials,
		Addresses: n.addrs.status(n.config.Namespace)})
	return nil
}

// serveNodes registers the methods for calls from other nodes.
func (n *Node) serveNodes(context.Context) error {
	n.apis.remote = remoteadmin.New(n.network, n.deps.Logger)
	n.apis.remote.Open(n.Admin())
	methods := append(n.control.Methods(), n.catalogue.Method(), n.doctor().Method(), n.apis.remote.Method(),
		n.apis.actors.Method(), n.apis.actors.HandOverMethod(), n.apis.jobs.Method())
	for _, name := range peercalls.Methods() {
		methods = append(methods, peer.Method{Name: name, Concurrency: peercalls.Concurrency(name),
			MaxRequest: peercalls.MaxRequest(name),
			Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
				return n.host.Serve(ctx, name, r.Payload)
			}})
	}
	return n.network.Handle(methods...)
}

// doctor returns the checks of this node. The replicated store of the node must be open.
func (n *Node) doctor() *doctor.Doctor {
	return doctor.New(doctor.Options{
		Node: n.host.Identity().Node, Version: n.config.Version, Disk: n.config.Data.disk(),
		Secured: n.config.Security.secured(),
		Bind:    n.config.Cluster.Bind, Network: n.network, Status: n.status, Now: n.deps.Now,
		ClockOffset: n.host.ClockOffset,
	})
}

// certificate returns the identity for the certificate of this node: the node id, the server id and the applications.
// The domain is the trust domain of the applications, or "" for the default one.
func (n *Node) certificate(domain string) trust.Identity {
	id := trust.Identity{Node: n.host.Identity().Node, Server: n.network.Identity().Server}
	for _, app := range n.apps() {
		id.Apps = append(id.Apps, trust.NewApp(domain, n.config.Namespace, app.ID))
	}
	return id
}

// identify sets the identity that this node has for other nodes. If connections between nodes are secured, it also
// issues the certificate of the node, and starts to reload credential files when they change.
func (n *Node) identify(context.Context) error {
	n.network.Introduce(n.host.Identity())
	if n.credentials == nil {
		return nil
	}
	if _, err := n.credentials.Identify(n.certificate("")); err != nil {
		return err
	}
	n.credentials.Announce()
	all := connections{n.network, n.calls}
	return n.loop("credentials", func(ctx context.Context) { n.credentials.Follow(ctx, all) })
}

// openPeer opens the peer port, so that nodes can connect to each other. It also starts to pass the live nodes to the
// catalogue, which then learns which applications they run.
func (n *Node) openPeer(context.Context) error {
	if err := n.network.OpenPort(); err != nil {
		return err
	}
	return n.loop("roster of the catalogue", n.catalogue.Follow)
}

// connections has the two parts of a node that connect to other nodes with its credentials.
type connections struct {
	*network.Network
	calls *calls.Calls
}

// Renew implements credentials.Connections.
func (c connections) Renew() {
	c.Network.Renew()
	c.calls.Renew()
}

// connectCalls enables calls between nodes. Other nodes can then call the applications of this node, and this node can
// call applications on other nodes.
func (n *Node) connectCalls(context.Context) error {
	n.calls.Connect(n.catalogue.Places())
	n.apis.jobs.Open(n.host, n.calls, n.apis.jobObservers(), n.catalogue.Places(), n.network.Port().Client())
	n.apis.actors.Connect(n.host, n.catalogue.Places())
	return n.closers.Push("calls between nodes", n.calls.Disconnect)
}

// openGossip announces this node and discovers the others.
func (n *Node) openGossip(ctx context.Context) error {
	self := network.Self{Identity: n.host.Identity(), Boot: n.catalogue.Boot(), Metrics: n.addrs.Metrics}
	if err := n.network.OpenGossip(ctx, self, n.catalogue.Channels()); err != nil {
		return err
	}
	me := n.network.Roster().Self()
	n.addrs.Gossip, n.addrs.Peer = me.Gossip.String(), me.PeerAddr
	return n.closers.Push("gossip", n.network.CloseGossip)
}

// buildAdmin serves the admin API on its socket.
func (n *Node) buildAdmin(ctx context.Context) error {
	l, err := adminapi.Listen(n.config.Data.Dir, n.config.Data.RuntimeDir)
	if err != nil {
		return err
	}
	n.addrs.Admin = l.Addr().String()
	handler := adminapi.NewHandler(n.Admin(), n.deps.Logger)
	if n.config.Profiles {
		handler = withProfiles(handler)
	}
	_, err = n.apis.serve(ctx, listenerAdmin, l, handler)
	return err
}

// buildComponents opens the declared components and applies the rules for calls.
func (n *Node) buildComponents(ctx context.Context) error {
	if n.place.front != nil {
		return nil // there is no application
	}
	var err error
	if n.apis.componentMetrics, err = components.NewMetrics(n.deps.Registry); err != nil {
		return err
	}
	set, err := components.Open(ctx, n.config.sources(n.deps), n.componentOptions())
	if set != nil {
		n.apis.reloads = newReloads(n, set)
		closing := func(context.Context) error { return n.apis.reloads.close() }
		err = errors.Join(n.closers.Push("components", closing), err)
	}
	if err != nil {
		return err
	}
	if len(set.SecretStores()) > 0 && len(n.config.Security.APITokens) == 0 {
		n.deps.Logger.Warn("every program on this machine can read the secrets: the API has a secret store "+
			"and no token", "hint", "set DAPR_API_TOKEN or --api-token-file")
	}
	if err := n.applyRules(set, true); err != nil {
		return err
	}
	n.apis.dapr.loaded(n.config.App.ID, nil, set.Statuses(), loader.Changes{})
	n.components.Serve(set)
	engine := n.host.Workflows(raftworkflows.BrokerOptions{Namespace: n.config.Namespace, Logger: n.deps.Logger,
		Spans: calls.Tracer{Tracer: n.apis.tracer}})
	n.apis.workflows.Open(engine)
	if err := n.closers.Push("workflows", func(context.Context) error { return engine.Close() }); err != nil {
		return err
	}
	n.apis.start.Open()
	return n.followTokens()
}

// followTokens starts to reload the API token file when the file changes. It does nothing if no token file is
// configured.
func (n *Node) followTokens() error {
	c := n.config.Security
	if c.APITokenFile == "" || n.apis.tokens == nil {
		return nil
	}
	tokens := reveal(c.APITokens)
	f := &credentials.APITokenFile{
		Path: c.APITokenFile, Fixed: tokens[:max(0, len(tokens)-c.FileTokens)], Current: tokens, Look: c.Look,
		Tokens: n.apis.tokens, Logger: n.deps.Logger,
	}
	return n.loop("api tokens", f.Follow)
}

// buildLoops starts the controller, which finds the cluster and manages the Raft groups. When the node stops, the
// controller is stopped first. Then the leaderships of this node are transferred to other nodes.
func (n *Node) buildLoops(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.control.Run(ctx) })
	return n.closers.Push("leadership", func(closing context.Context) error {
		cancel()
		wg.Wait()
		n.control.HandOver(closing)
		return nil
	})
}

// buildDrain registers the closer of the APIs. The closer ends watches, refuses new requests, and waits for the
// requests in progress while the store still works. It closes all APIs concurrently, because a call in progress in one
// API may need another.
func (n *Node) buildDrain(context.Context) error {
	return n.closers.Push("api requests", func(ctx context.Context) error {
		n.apis.watches.Close()
		for _, c := range n.apis.configurations {
			c.Close()
		}
		var errs []error
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, closer := range append(n.apis.closeAPIs(), n.calls.CloseServer) {
			all.Go(func() {
				err := closer(ctx)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		all.Wait()
		return errors.Join(errs...)
	})
}

// serveApps announces the applications of this node to other nodes. When the node stops, the announcement is withdrawn
// before the parts that carry calls are closed, so that other nodes stop calling in time.
func (n *Node) serveApps(context.Context) error {
	var out []discovery.Record
	for _, a := range n.apps() {
		r := discovery.Record{App: discovery.App{ID: a.ID, Namespace: n.config.Namespace}, Healthy: true}
		if c := n.calls.Channel(a.ID); c != nil {
			r.Protocol = string(a.Protocol)
			r.Healthy, _ = c.Healthy()
		}
		out = append(out, r)
	}
	if err := n.catalogue.Serve(out); err != nil {
		return err
	}
	for app, ch := range n.calls.Channels() { // health that changed in between
		healthy, _ := ch.Healthy()
		n.catalogue.SetHealth(app, healthy)
	}
	return n.closers.Push("applications", func(context.Context) error { return n.catalogue.Serve(nil) })
}

// buildInputs starts to deliver events of input bindings and messages of subscriptions, and to watch the component
// files. When the node stops, all of this ends before the node withdraws the announcement of its applications.
func (n *Node) buildInputs(context.Context) error {
	if n.place.front != nil {
		return nil // there is no application
	}
	r, err := inputs.Open(n.components.Bindings(), idsOf(n.apps()), n.calls, n.apis.eventObservers(), n.deps.Logger)
	if err != nil {
		return err
	}
	n.apis.inputs = r
	n.status.SetInputs(issues{r, n.apis.reloads})
	if err := n.closers.Push("input bindings", r.Close); err != nil {
		return err
	}
	if err := subscriptions.Check(n.apis.reloads.subscriptions()); err != nil {
		return err
	}
	n.apis.subscribers.Open(n.apis.reloads.subscriptions())
	if err := n.closers.Push("subscriptions", n.apis.subscribers.Close); err != nil {
		return err
	}
	return n.loop("changed files", n.apis.reloads.follow)
}

// exposed reports whether other machines can reach one of the hosts.
func exposed(hosts []string) bool {
	for _, h := range hosts {
		if !listen.IsLoopback(h) {
			return true
		}
	}
	return false
}

// port returns the port on which the node listens, for either gossip or calls between nodes. If the port is in use, the
// node uses another one only if p is not Given and the node joins no other nodes. In all other cases, other nodes may
// expect this node at p.
func (c Cluster) port(p Port) network.Port {
	return network.Port{Number: p.Number, Fallback: !p.Given && !c.joining()}
}

// files returns the credential files for traffic between nodes.
func (s Security) files() credentials.Files {
	return credentials.Files{
		Token: s.ClusterTokenFile, Cert: s.ClusterCertFile, Key: s.ClusterKeyFile, CA: s.ClusterCAFile,
		Certificates: s.Certificates, Look: s.Look, Drain: s.Drain,
	}
}

// trust returns how callers on other nodes are identified.
func (c Config) trust() calls.Trust {
	return calls.Trust{Proven: c.Security.secured(), Insecure: c.Security.Insecure}
}

// reading returns the options for reading Configuration and Resiliency documents.
func (c Config) reading() calls.Reading { return calls.Reading{Trust: c.trust(), Dapr: c.Dapr} }

// sources returns where components are declared.
func (c Config) sources(d Deps) components.Sources {
	return components.Sources{
		Paths: c.Components.Paths, ConfigFiles: c.Components.ConfigFiles, Apps: idsOf(c.apps()),
		Namespace: c.Namespace, Env: d.Env, Environ: d.Environ, MaxBody: largestBody(c.API.MaxBodySize),
		SocketsFolder: c.Components.Sockets,
	}
}

// largestBody returns the maximum size of a request body in bytes for the given setting. A negative setting means no
// limit. In this case, the result is the size of the largest value that Redis can store.
func largestBody(limit int64) int64 {
	if limit < 0 {
		return 512 << 20
	}
	return limit
}
