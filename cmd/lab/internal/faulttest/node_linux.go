package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
	"github.com/quorate/quorate/internal/child"
)

const (
	apiAddress     = "127.0.0.1:3500" // the same for every node, each in its own network
	grpcAddress    = "127.0.0.1:50001"
	metricsAddress = "127.0.0.1:9090"
	gossipPort     = 7946

	// endPatience is how long a process may take to end after SIGTERM.
	endPatience = 30 * time.Second
	// statusPatience is the timeout of a status request. A paused node does not respond.
	statusPatience = 2 * time.Second
)

// appAddress returns the address at which a node serves an application.
func appAddress(app int) string { return fmt.Sprintf("127.0.0.1:%d", 3500+app) }

// writeApps writes the settings file with the additional applications.
func (n *Node) writeApps(path string) error {
	text := "apps:\n"
	for i, id := range n.cluster.options.Apps {
		text += fmt.Sprintf("  - id: %s\n    httpPort: %d\n", id, 3500+i+1)
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// Node is a node of the cluster, running or not. It is safe for concurrent use.
type Node struct {
	Name string
	Addr netip.Addr
	Disk *Disk // nil unless the cluster has disks and the node holds data
	// Sidecar is set for a node that holds no data.
	Sidecar bool

	cluster *Cluster
	ns      *namespace
	join    []string
	expect  int
	flags   []string
	dir     string
	log     *os.File
	node    *launcher.Node
	http    http.Client // client of its API, from inside its network
	admin   http.Client
	app     *http.Server // the application of the node; nil = none

	mu      sync.Mutex
	paused  bool      // guarded by mu
	resumed time.Time // guarded by mu: end of the last pause
	env     []string  // guarded by mu: for the next start only
}

// sidecarFlags make a node a sidecar.
var sidecarFlags = []string{"--role", "sidecar"}

// DataDir returns the directory of the node's data.
func (n *Node) DataDir() string {
	if n.Disk != nil {
		return n.Disk.Dir()
	}
	return filepath.Join(n.dir, "data")
}

// Start starts the process. It must not be running.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.node.Running() {
		return fmt.Errorf("%s runs already", n.Name)
	}
	n.node.DataDir = n.DataDir()
	args := []string{
		"--bind-address", n.Addr.String(), "--insecure", "--http-port", "3500", "--grpc-port", "50001",
		"--metrics-port", "9090", "--gossip-port", "7946", "--peer-port", "7947",
	}
	if len(n.join) > 0 {
		args = append(args, "--join", strings.Join(n.join, ","))
	}
	if n.expect > 0 {
		args = append(args, "--bootstrap-expect", fmt.Sprint(n.expect))
	}
	if len(n.cluster.options.Apps) > 0 {
		file := filepath.Join(n.dir, "settings.yaml")
		if err := n.writeApps(file); err != nil {
			return err
		}
		args = append(args, "--config-file", file)
	}
	fmt.Fprintf(n.log, "--- %s starts at %s\n", n.Name, time.Now().Format(time.RFC3339Nano))
	n.node.Options.Env = slices.Concat(os.Environ(), n.cluster.options.Program.Env,
		[]string{"XDG_RUNTIME_DIR=" + n.dir, "HOME=" + n.dir, tuned.Control + "=" + n.dir}, n.env)
	if err := n.node.Start(append(args, n.flags...)...); err != nil {
		return err
	}
	n.paused, n.env = false, nil
	return nil
}

// StartWith starts the process with additional environment variables, for this start only.
func (n *Node) StartWith(env ...string) error {
	n.mu.Lock()
	n.env = env
	n.mu.Unlock()
	return n.Start()
}

// Anew removes the data of the node, so that the node joins the existing nodes at its next start. An operator does the
// same for a server that has lost its disk. The process of the node must not be running.
func (n *Node) Anew() error {
	n.Mark("wiped")
	n.expect = 0
	n.joinAll()
	list, err := os.ReadDir(n.DataDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range list {
		if err := os.RemoveAll(filepath.Join(n.DataDir(), e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// joinAll makes the node contact all existing servers when it joins.
func (n *Node) joinAll() {
	n.join = nil
	for _, other := range n.cluster.Nodes() {
		if other != n && !other.Sidecar {
			n.join = append(n.join, fmt.Sprintf("%s:%d", other.Addr, gossipPort))
		}
	}
}

// Order writes a value to a control file of the node. Package tuned describes the control files.
func (n *Node) Order(file string, value int64) error {
	path := filepath.Join(n.dir, file)
	n.Mark(fmt.Sprintf("%s = %d", file, value))
	if err := os.WriteFile(path+".new", fmt.Append(nil, value), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Pid returns the id of the process, which must have been started.
func (n *Node) Pid() int { return n.node.Pid() }

// current returns the latest incarnation of the process, or nil before the first start.
func (n *Node) current() *child.Process { return n.node.Current() }

// Running reports whether there is a process, paused or not.
func (n *Node) Running() bool { return n.node.Running() }

// Ended returns a channel that is closed when the process of the node has ended. The process must have been started.
func (n *Node) Ended() <-chan struct{} { return n.node.Ended() }

// Kill ends the process with SIGKILL and waits until it has ended. It returns an error if the process still runs after
// 30 seconds.
func (n *Node) Kill() error {
	n.Mark("kill -9")
	return n.node.End(syscall.SIGKILL, endPatience)
}

// Stop ends the process with SIGTERM and waits until it has ended. It returns an error if the process still runs after
// 30 seconds.
func (n *Node) Stop() error {
	n.Mark("SIGTERM")
	return n.node.End(syscall.SIGTERM, endPatience)
}

// Pause suspends the process with SIGSTOP, until Resume.
func (n *Node) Pause() error { return n.freeze(syscall.SIGSTOP, true) }

// Resume continues a paused process with SIGCONT.
func (n *Node) Resume() error { return n.freeze(syscall.SIGCONT, false) }

func (n *Node) freeze(s syscall.Signal, paused bool) error {
	n.Mark(s.String())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused = paused
	if !paused {
		n.resumed = time.Now()
	}
	n.node.Signal(s)
	return nil
}

// Mark writes a line into the log of the node.
func (n *Node) Mark(what string) {
	fmt.Fprintf(n.log, "--- %s: %s at %s\n", n.Name, what, time.Now().Format(time.RFC3339Nano))
}

// active reports whether the process runs and is not paused.
func (n *Node) active() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node.Running() && !n.paused
}

// pausedWithin reports whether the process is paused, or was during the last d.
func (n *Node) pausedWithin(d time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.paused || time.Since(n.resumed) < d
}

// Status returns the status of the node.
func (n *Node) Status(ctx context.Context) (schema.NodeStatus, error) {
	var s schema.NodeStatus
	if !n.active() {
		return s, fmt.Errorf("%s does not run", n.Name)
	}
	return s, n.ask(ctx, adminapi.StatusPath, &s)
}

// ask requests a path from the admin socket of the node and decodes the response.
func (n *Node) ask(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return err
	}
	resp, err := n.admin.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		return fmt.Errorf("%s of %s: status %d: %s, %w", path, n.Name, resp.StatusCode, text, err)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Metric returns the sum of all metrics of the node whose name and labels begin with prefix, for example
// `requests_total{status="200"`.
func (n *Node) Metric(ctx context.Context, prefix string) (float64, error) {
	text, err := n.Metrics(ctx)
	return text.Sum(prefix), err
}

// Metrics is the text of all metrics of a node, in the format of Prometheus.
type Metrics string

// Metrics reads all metrics of the node.
func (n *Node) Metrics(ctx context.Context) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return Metrics(text), err
}

// Sum returns the sum of the values of all metrics whose name and labels begin with prefix.
func (m Metrics) Sum(prefix string) float64 {
	sum := 0.0
	for line := range strings.Lines(string(m)) {
		var v float64
		if i := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, prefix) && i > 0 {
			if _, err := fmt.Sscan(line[i:], &v); err == nil {
				sum += v
			}
		}
	}
	return sum
}

// line returns the rest of the first line that starts with name.
func (m Metrics) line(name string) string {
	for line := range strings.Lines(string(m)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// Open returns the number of files and connections that the process has open.
func (n *Node) Open() (int, error) {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Pid()))
	return len(list), err
}

// Dump sends SIGQUIT to the process. The process then writes the stacks of its goroutines to its log, and ends.
func (n *Node) Dump() error { return syscall.Kill(n.Pid(), syscall.SIGQUIT) }

// CloseIdle closes the idle connections between this harness and the API of the node.
func (n *Node) CloseIdle() { n.http.CloseIdleConnections() }

// Dial connects to the API of the node, from inside its network.
func (n *Node) Dial(ctx context.Context) (net.Conn, error) { return n.ns.dial(ctx, apiAddress) }

// grpc returns a client of the gRPC API, from inside the network of the node.
func (n *Node) grpc() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(n.ns.dial))
}

// clients prepares the HTTP clients for the API and for the admin socket of the node.
func (n *Node) clients() {
	n.http.Transport = &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, address string) (net.Conn,
			error) {
			return n.ns.dial(ctx, address)
		},
	}
	n.admin.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			path, err := adminapi.FindSocket(n.DataDir())
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
}

// close kills the process, and removes the application, disk and network of the node.
func (n *Node) close() error {
	var errs []error
	if n.Disk != nil && n.Disk.root != nil {
		errs = append(errs, n.Disk.Resume()) // otherwise the process cannot end
	}
	errs = append(errs, n.Kill())
	n.http.CloseIdleConnections()
	if n.app != nil {
		errs = append(errs, n.app.Close())
	}
	if n.Disk != nil && n.Disk.root != nil {
		errs = append(errs, n.Disk.Close())
	}
	errs = append(errs, n.cluster.Net.detach(n.Addr), n.log.Close())
	n.ns.close()
	return errors.Join(errs...)
}

// end kills the process, and unmounts and deletes its disk.
func (n *Node) end() error {
	err := n.Kill()
	n.http.CloseIdleConnections()
	if n.Disk != nil && n.Disk.root != nil {
		err = errors.Join(err, n.Disk.Close())
	}
	return err
}

// Tail returns the last lines of the node's log.
func (n *Node) Tail(lines int) string {
	text, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
