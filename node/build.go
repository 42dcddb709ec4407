package node

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
)

// build starts every subsystem, top to bottom; each pushes its closer.
func (n *Node) build(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		n.buildMetrics,    // so that a slow start can be watched
		n.buildTracer,     // the last to be closed, so that nothing is missing from the traces
		n.buildCalls,      // what calls of applications share, and the way to the application
		n.buildAPI,        // health answers from here on, with what is still missing
		n.buildTrust,      // a mistake in files of credentials is found before the disk is touched
		n.buildPeer,       // the port of the groups and of calls between nodes
		n.buildHost,       // the replicated store
		n.buildCatalogue,  // which applications run where
		n.openPeer,        // others may call, the host answers
		n.buildCarrier,    // calls of applications from node to node
		n.buildGossip,     // who is there, and where
		n.buildAdmin,      // its socket lies in the directory that the host has locked
		n.buildComponents, // from here on the API serves
		n.buildTokens,     // follows the file with API tokens
		n.buildLoops,      // finds the cluster, and keeps its groups in order
		n.buildDrain,      // closed first: requests under way still find everything they need
		n.buildServed,     // others may call the applications; taken back before anything is closed
		n.buildInputs,     // events of the outside go to the applications; the first to end
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// buildMetrics serves the registry to Prometheus.
func (n *Node) buildMetrics(ctx context.Context) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_build_info", Help: "Always 1; the label says which version runs.",
		ConstLabels: prometheus.Labels{"version": n.config.Version}})
	info.Set(1)
	n.connections = newConnections(n.registry)
	n.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c := n.config.Metrics
	if c.Off {
		return nil
	}
	ls, err := listen.TCP(ctx, listen.Request{Hosts: []string{c.Listen}, Port: c.Port.Number, Fallback: !c.Port.Given && !n.config.Cluster.joining(), Flag: "--metrics-port"})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	page := promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{Registry: n.registry})
	mux.Handle("GET /metrics", page)
	mux.Handle("GET /{$}", page)
	mux.HandleFunc("GET "+targetsPath, n.serveTargets)
	n.addrs.Metrics = ls[0].Addr().String()
	_, err = n.serve(ctx, listenerMetrics, ls[0], mux)
	return err
}

// serve runs one HTTP server until the node closes.
func (n *Node) serve(ctx context.Context, name string, l net.Listener, h http.Handler) (*apihttp.Server, error) {
	s := apihttp.NewServer(apihttp.ServerConfig{
		Listener: l, Handler: h, Logger: n.log, MaxConnections: n.mostConnections(name),
		Open: n.connections.open.WithLabelValues(name), Cut: n.connections.cut.WithLabelValues(name),
	})
	if err := s.Open(ctx); err != nil {
		return nil, err
	}
	return s, n.closers.Push(name, s.Close)
}

// buildDrain makes a stop begin with the API: no new requests, and the end of those under
// way, while the store can still serve them.
func (n *Node) buildDrain(context.Context) error {
	return n.closers.Push("api requests", func(ctx context.Context) error {
		var errs []error
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, closer := range n.drained() {
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

func reveal(secrets []Secret) []string {
	out := make([]string, len(secrets))
	for i, s := range secrets {
		out[i] = string(s)
	}
	return out
}

// exposed reports whether others than this machine can reach the API; they call it by
// names that the node cannot know.
func exposed(hosts []string) bool {
	for _, h := range hosts {
		if !listen.IsLoopback(h) {
			return true
		}
	}
	return false
}

// buildHost opens the replicated store.
func (n *Node) buildHost(ctx context.Context) error {
	c := n.config
	host, err := raftfsm.Open(ctx, raftfsm.Options{
		Dir: c.Data.Dir, NodeID: c.Cluster.NodeID, DefaultID: c.Cluster.defaultID(), Sidecar: c.Cluster.Role == RoleSidecar, Servers: n.liveServers, Partitions: uint32(c.Cluster.Partitions), Count: n.countPartitions, Engine: group.LogEngine(c.Data.LogStore),
		Bootstrap: !c.Cluster.joining(), MinFree: uint64(c.Data.MinFree), Transport: n.transport, Peers: n.port.Client(), Newest: n.newestFormat,
		Timing: c.Cluster.Timing, Bounds: c.Cluster.Bounds, Logger: n.log, Registerer: n.registry, Fatal: n.deps.Fatal, Now: n.deps.Now, Step: n.deps.Step,
	})
	if err != nil {
		return err
	}
	n.host, n.addrs.DataDir = host, c.Data.Dir
	n.reconciler = newReconciler(n)
	n.registry.MustRegister(newLagCollector(n.reconciler))
	return n.closers.Push("replicated store", func(context.Context) error {
		for _, t := range n.transports {
			t.Interrupt() // raft would wait for requests to servers that are down
		}
		return host.Close()
	})
}

// buildLoops starts what goes on for as long as the node runs. Their closer is the first
// to be called, and hands leadership over.
func (n *Node) buildLoops(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		n.findCluster(ctx)
		n.reconciler.run(ctx)
	})
	return n.closers.Push("leadership", func(closing context.Context) error {
		cancel()
		wg.Wait()
		return n.handOver(closing)
	})
}

// buildAdmin serves the admin API on its socket.
func (n *Node) buildAdmin(ctx context.Context) error {
	l, err := apihttp.ListenAdmin(n.config.Data.Dir, n.config.Data.RuntimeDir)
	if err != nil {
		return err
	}
	n.addrs.Admin = l.Addr().String()
	_, err = n.serve(ctx, listenerAdmin, l, apihttp.NewAdmin(n, n.log))
	return err
}

// buildComponents opens what the resources declare.
func (n *Node) buildComponents(ctx context.Context) error {
	if n.place.bare {
		return nil // nobody would use them
	}
	o, err := n.loaderOptions()
	if err != nil {
		return err
	}
	set, err := loader.Open(ctx, o)
	if err != nil {
		return err
	}
	if err := n.closers.Push("components", func(context.Context) error { return set.Close() }); err != nil {
		return err
	}
	if err := errors.Join(unsupported(set)...); err != nil {
		return err
	}
	if len(set.SecretStores()) > 0 && len(n.config.Security.APITokens) == 0 {
		n.log.Warn("every program of this machine can read the secrets: the API has a secret store and no token", "mend", "set DAPR_API_TOKEN or --api-token-file")
	}
	if err := n.configureCalls(set); err != nil {
		return err
	}
	n.set.Store(set)
	return nil
}

func (n *Node) loaderOptions() (loader.Options, error) {
	metrics, err := state.NewMetrics(n.registry)
	if err != nil {
		return loader.Options{}, err
	}
	o := loaderOptions(n.config, n.deps.Env, func(_ context.Context, c loader.StateConfig) (state.Store, error) {
		return n.host.Store(c.Namespace, c.Name), nil
	})
	if o.BindingMetrics, err = bindings.NewMetrics(n.registry); err != nil {
		return loader.Options{}, err
	}
	o.Claims = claims{n}
	if o.SecretMetrics, err = secretstores.NewMetrics(n.registry); err != nil {
		return loader.Options{}, err
	}
	o.Logger, o.Metrics, o.Environ = n.log, metrics, n.deps.Environ
	o.Factories, err = builtin.Factories(o.Factories)
	return o, err
}

// TypeStateRaft is the component type of the replicated store.
const TypeStateRaft = "state.raft"

// loaderOptions say what to load for c; open makes stores of the replicated type.
func loaderOptions(c Config, env func(string) (string, bool), open func(context.Context, loader.StateConfig) (state.Store, error)) loader.Options {
	pod, _ := env("POD_NAME")
	return loader.Options{
		Paths: c.Components.Paths, ConfigFiles: c.Components.ConfigFiles, Apps: c.appIDs(), Namespace: c.Namespace, PodName: pod,
		Factories:    loader.Factories{State: map[string]loader.StateFactory{TypeStateRaft: {Open: open}}},
		DefaultState: &component.Spec{Name: "statestore", Type: TypeStateRaft, Version: component.DefaultVersion},
		Env:          env,
		UUID:         newUUID,
	}
}

// newUUID is a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	const hex = "0123456789abcdef"
	var s strings.Builder
	for i, v := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			s.WriteByte('-')
		}
		s.WriteByte(hex[v>>4])
		s.WriteByte(hex[v&15])
	}
	return s.String()
}

// unsupported refuses documents whose promises this version cannot keep: ignoring one
// that restricts access would open what somebody meant to close.
func unsupported(set documents) (errs []error) {
	for _, kind := range []component.Kind{component.KindHTTPEndpoint} {
		for _, d := range set.Documents(kind) {
			errs = append(errs, &fault.Error{Code: fault.Unimplemented, Op: "node.Open", Key: d.Pos.String(),
				Msg: d.Pos.String() + ": documents of kind " + string(kind) + " have no effect in this version", Hint: "remove the document"})
		}
	}
	return errs
}
