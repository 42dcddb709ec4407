package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/listen"
)

// invokePath is the path of a call through a sidecar.
const invokePath = "/v1.0/invoke/app/method/value"

// forwarder is a system under test that forwards calls to the application in this process.
type forwarder struct {
	*processes
	title, text string
	program     string // path of the quorate program; empty for other systems
	address     string // of the server that gets the calls
	path        string // URL path of a call
	app         *application
	conns       []client
}

func (f *forwarder) name() string  { return f.title }
func (f *forwarder) about() string { return f.text }

func (f *forwarder) clients(n int) ([]client, error) {
	for i := len(f.conns); i < n; i++ {
		f.conns = append(f.conns, f.client())
	}
	return f.conns[:n], nil
}

func (f *forwarder) client() *caller {
	return &caller{bare: bare{address: f.address}, path: f.path, app: f.app}
}

// end stops the servers with SIGTERM and waits for them. If a server is still running after 15 s, end kills it. Killing
// nginx at once would leave its child processes running.
func (f *forwarder) end() {
	_ = launcher.StopAll(f.all...) // errors do not matter, because the directory is removed next
	f.close()
}

// started waits until a call through the servers succeeds.
func (f *forwarder) started(ctx context.Context) (store, error) {
	c := f.client()
	if err := c.save(ctx, "", "ready"); err != nil {
		return nil, err
	}
	if err := until(ctx, func() error { return once(ctx, c, call, "", "ready") }); err != nil {
		defer f.end()
		return nil, f.failed(err)
	}
	return f, nil
}

// caller calls the application through a forwarder.
type caller struct {
	bare bare
	path string
	app  *application
}

// save sets the value with which the application answers all calls.
func (c *caller) save(_ context.Context, _, value string) error {
	c.app.value.Store(&value)
	return nil
}

func (c *caller) read(ctx context.Context, _ string, _ bool) (string, error) {
	body, err := c.bare.fetch(ctx, http.MethodGet, c.path, nil)
	return string(body), err
}

func (c *caller) lock(context.Context, string) error { return errors.ErrUnsupported }

// serveLocally serves HTTP at a free port of 127.0.0.1, in this process, until the server is closed.
func serveLocally(h http.Handler) (server *http.Server, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	_, port, err = net.SplitHostPort(l.Addr().String())
	server = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	return server, port, err
}

// application is a server in this process that answers every request with a value.
type application struct {
	value  atomic.Pointer[string]
	server *http.Server
	port   string
}

func startApplication() (*application, error) {
	a := &application{}
	var err error
	a.server, a.port, err = serveLocally(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if value := a.value.Load(); value != nil {
			_, _ = io.WriteString(w, *value)
		}
	}))
	return a, err
}

func (a *application) end() { _ = a.server.Close() }

// callQuorate returns an opener that starts one node for the application. The measured calls go through this node. The
// title selects the quorate program, as in findQuorate.
func callQuorate(title string) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		f, c, err := forwardingNode(ctx, title, s, dir)
		if f == nil || err != nil {
			return nil, err
		}
		f.text, f.address = f.text+", one node", c.Nodes[0].Address()
		return f.started(ctx)
	}
}

// forwardingNode starts a node for the application that runs in this process. If findQuorate selects no program for the
// title, the result is a nil forwarder and no error.
func forwardingNode(ctx context.Context, title string, s *settings, dir string) (*forwarder, *launcher.Cluster,
	error) {
	program, p, err := findQuorate(title, s, dir)
	if p == nil || err != nil {
		return nil, nil, err
	}
	c, err := p.startCluster(ctx, program, 1, "--app-id", "app", "--app-port", s.app.port)
	if err != nil {
		defer p.end()
		return nil, nil, p.failed(err)
	}
	return &forwarder{processes: p, title: title, program: program, text: firstLine(program, "version"),
		path: invokePath, app: s.app}, c, nil
}

// callQuorateElsewhere returns an opener that starts two nodes, one of them for the application. The measured calls go
// to the other node, so each call passes through both nodes. The title selects the quorate program, as in findQuorate.
func callQuorateElsewhere(title string) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		f, c, err := forwardingNode(ctx, title, s, dir)
		if f == nil || err != nil {
			return nil, err
		}
		ports, err := listen.Spare(ctx, 2)
		if err != nil {
			defer f.end()
			return nil, err
		}
		caller := launcher.Loopback("caller", f.program, filepath.Join(f.dir, "caller"), ports[0], ports[1])
		f.text, f.address = f.text+", two nodes", caller.Address()
		if err := f.startNode(caller, "--role", "sidecar", "--join", c.Nodes[0].Gossip(), "--enable-grpc=false",
			"--log-level", "warn"); err != nil {
			defer f.end()
			return nil, err
		}
		return f.started(ctx)
	}
}

// nginxConfig is the configuration of nginx. Its format arguments are the port on which nginx listens, and the port to
// which it forwards all requests. nginx keeps the connections on both sides open.
const nginxConfig = `daemon off;
worker_processes 2;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_requests 1000000000;
  upstream next { server 127.0.0.1:%[2]s; keepalive 512; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:%[1]s;
    location / { proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
`

// callNginx calls the application through nginx.
func callNginx(ctx context.Context, s *settings, dir string) (store, error) {
	return nginx(ctx, s, dir, 1)
}

// callNginxTwice calls the application through two nginx servers: the first server forwards to the second one.
func callNginxTwice(ctx context.Context, s *settings, dir string) (store, error) {
	return nginx(ctx, s, dir, 2)
}

func nginx(ctx context.Context, s *settings, dir string, servers int) (store, error) {
	program, p, err := find("nginx", s.nginx, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(servers)
	if err != nil {
		return nil, err
	}
	f := &forwarder{processes: p, title: "nginx", address: "127.0.0.1:" + ports[0], path: "/", app: s.app,
		text: fmt.Sprintf("%s, %d in a row, 2 workers each", firstLine(program, "-v"), servers)}
	for i, port := range ports {
		name, next := "nginx"+strconv.Itoa(i+1), s.app.port
		if i+1 < servers {
			next = ports[i+1]
		}
		prefix := filepath.Join(p.dir, name)
		if err := os.Mkdir(prefix, 0o700); err != nil {
			return nil, err
		}
		config := filepath.Join(prefix, "nginx.conf")
		if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, port, next), 0o600); err != nil {
			return nil, err
		}
		if err := p.start(name, program, "-p", prefix, "-c", config); err != nil {
			f.end()
			return nil, err
		}
	}
	return f.started(ctx)
}

// callGoProxy starts the reverse proxy of Go's standard library in a separate process, and calls the application
// through it.
func callGoProxy(ctx context.Context, s *settings, dir string) (store, error) {
	p, address, err := startSelf("proxy", dir, func(address string) string {
		return address + ",127.0.0.1:" + s.app.port
	})
	if err != nil {
		return nil, err
	}
	f := &forwarder{processes: p, title: "go-proxy", text: "httputil.ReverseProxy", address: address, path: "/",
		app: s.app}
	return f.started(ctx)
}

// serveProxy is the main function of the process that callGoProxy starts. addresses has the address of the proxy and
// the address of the application, separated by a comma.
func serveProxy(ctx context.Context, addresses string) error {
	own, app, _ := strings.Cut(addresses, ",")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: app})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 1024}
	return serve(ctx, own, proxy)
}

// callDaprd calls the application through daprd.
func callDaprd(ctx context.Context, s *settings, dir string) (store, error) {
	d, err := startDaprd(s, dir, "", "--app-port", s.app.port)
	if err != nil {
		return nil, err
	}
	f := &forwarder{processes: d.processes, title: "daprd", text: d.version, address: d.address,
		path: invokePath, app: s.app}
	return f.started(ctx)
}
