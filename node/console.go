package node

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/console"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/node/actorhost"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/jobs"
	"github.com/quorate/quorate/node/overview"
)

// newOverview returns the source of the data that the console shows about this node and the cluster.
func newOverview(n *Node) *overview.Overview {
	return overview.New(overview.Options{Status: n.status, Applications: n.catalogue, Components: n.components,
		Metrics: n.deps.Registry, Logs: n.deps.recent, Groups: n.host, Runs: &n.apis.jobs, Remote: n.apis.remote,
		Now: n.deps.Now})
}

// buildConsole serves the web console, if the settings enable it.
func (n *Node) buildConsole(ctx context.Context) error {
	c := n.config.Console
	if !c.On {
		return nil
	}
	ls, err := listen.TCP(ctx, listen.Request{Hosts: []string{n.config.Metrics.Listen}, Port: c.Port.Number,
		Fallback: !c.Port.Given && !n.config.Cluster.joining(), Flag: "--console-port"})
	if err != nil {
		return err
	}
	at := ls[0].Addr().String()
	_, port, _ := net.SplitHostPort(at) // the address of a TCP listener has a port
	con, err := console.New(console.Config{Cluster: newOverview(n), Write: c.Write,
		Data: &consoleData{n.components, n.config.Namespace},
		Blocks: &consoleBlocks{lockService{n.host, n.components.LockStores, n.deps.Logger},
			configurationAdmin{n.components}, n.components},
		Work:      &consoleWork{jobs.Admin{Jobs: &n.apis.jobs, Logger: n.deps.Logger}, n.apis.actors},
		Workflows: workflowAdmin(n),
		Topics:    newTopicService(n),
		Calls:     callLogFor(n),
		OpenAPI:   apihttp.OpenAPI(), Token: n.apis.tokenFor, Port: port, Logger: n.deps.Logger,
		Now: n.deps.Now})
	if err != nil {
		closeListeners(ls)
		return err
	}
	if exposed([]string{n.config.Metrics.Listen}) {
		n.deps.Logger.Warn("the web console is served without TLS beyond loopback: its sign-in can be read on the "+
			"network", "address", at,
			"hint", "leave --metrics-listen-address at 127.0.0.1 and forward the port with ssh -L")
	}
	if _, err := n.apis.serve(ctx, listenerConsole, ls[0], con.Handler()); err != nil {
		return err
	}
	n.addrs.Console = at
	n.apis.consoleLinks.served.Store(&servedConsole{con, at})
	return n.closers.Push("open pages of the console", func(context.Context) error {
		con.Close()
		return nil
	})
}

// consoleData gives the console access to the state of all applications, including those on other nodes.
type consoleData struct {
	components *components.Components
	namespace  string
}

// Stores implements console.Data.
func (d *consoleData) Stores(app string) []string {
	var names []string
	for _, i := range d.components.For(app).StateStores() {
		names = append(names, i.Name)
	}
	return names
}

// State implements console.Data.
func (d *consoleData) State(app string) *api.State {
	return api.NewState(api.App{ID: app, Namespace: d.namespace}, d.components.For(app), api.Limits{})
}

// consoleBlocks gives the console access to locks and configuration items.
type consoleBlocks struct {
	locks      lockService
	items      configurationAdmin
	components *components.Components
}

// HeldLocks implements console.Blocks.
func (b *consoleBlocks) HeldLocks(ctx context.Context) ([]schema.LockStatus, error) {
	return b.locks.HeldLocks(ctx)
}

// ReleaseLock implements console.Blocks.
func (b *consoleBlocks) ReleaseLock(ctx context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error) {
	return b.locks.ReleaseLock(ctx, r)
}

// ConfigurationStores implements console.Blocks.
func (b *consoleBlocks) ConfigurationStores() []string {
	var names []string
	for _, i := range b.components.ConfigurationStores() {
		names = append(names, i.Name)
	}
	return names
}

// ConfigurationItems implements console.Blocks.
func (b *consoleBlocks) ConfigurationItems(ctx context.Context, store string, keys []string,
) ([]configurations.Change, error) {
	return b.items.ConfigurationItems(ctx, store, keys)
}

// consoleWork gives the console access to jobs and actors.
type consoleWork struct {
	jobs   jobs.Admin
	actors *actorhost.Host
}

// ListJobs implements console.Work.
func (w *consoleWork) ListJobs(ctx context.Context, r schema.JobSelection) ([]schema.JobStatus, error) {
	return w.jobs.ListJobs(ctx, r)
}

// ListActors implements console.Work.
func (w *consoleWork) ListActors(ctx context.Context, limit int) ([]schema.ActorsStatus, error) {
	return w.actors.Status(ctx, limit)
}

// tokenFor returns a valid API token for app, or "" if app needs none. It reads the token file at each call, because
// the tokens in the file may have changed.
func (s *apiServers) tokenFor(app string) string {
	for _, a := range s.apps {
		if a.ID == app && a.Token != "" {
			return string(a.Token)
		}
	}
	if path := s.config.Security.APITokenFile; path != "" {
		if text, err := userfile.Read(path); err == nil {
			if tokens := credentials.ParseAPITokens(text); len(tokens) > 0 {
				return tokens[0]
			}
		}
	}
	if tokens := s.config.Security.APITokens; len(tokens) > 0 {
		return string(tokens[0])
	}
	return ""
}

// consoleLinks issues links to the console.
type consoleLinks struct{ served atomic.Pointer[servedConsole] } // nil = the node serves no console

type servedConsole struct {
	*console.Console
	at string // host:port
}

// ConsoleLink implements adminapi.Console.
func (l *consoleLinks) ConsoleLink(context.Context) (schema.ConsoleLink, error) {
	c := l.served.Load()
	if c == nil {
		return schema.ConsoleLink{}, &fault.Error{Code: fault.Unavailable, Op: "node.Console",
			Msg: "this node serves no web console", Hint: "start the node with --console"}
	}
	path, expires := c.Login()
	host, port, _ := net.SplitHostPort(c.at)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return schema.ConsoleLink{URL: "http://" + net.JoinHostPort(host, port) + path,
		Expires: expires.UTC().Truncate(time.Second)}, nil
}
