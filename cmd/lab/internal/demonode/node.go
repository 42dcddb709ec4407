// Package demonode runs the three nodes of a demo, each in its own process, and sends requests to them.
//
// It owns the processes of the nodes and knows only the binary and the HTTP API. The package that uses it decides
// what the demo shows. Each process has the goroutines of internal/child.
package demonode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/listen"
)

const (
	// Size is the number of nodes.
	Size = 3
	// AnswerTime is the timeout of a request. It may wait for a new leader.
	AnswerTime = 30 * time.Second

	grace     = 15 * time.Second       // for a node to stop
	patience  = 2 * time.Minute        // for a node to be ready, and for the cluster to form
	pause     = 100 * time.Millisecond // between two checks of the nodes
	firstPort = 3500                   // of the APIs, if it and the next ones are free
)

// Lines writes whole lines from several goroutines. It is safe for concurrent use.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLines returns Lines that write to w.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Say writes one line.
func (l *Lines) Say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Write forwards lines.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// appLines is a writer for the output of a node. It forwards only the lines of the node's application.
type appLines struct{ out *Lines }

// Write receives one whole line per call.
func (a appLines) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "== APP ==") {
		return a.out.Write(p)
	}
	return len(p), nil
}

// Cluster is three nodes, n1 to n3, that form one cluster.
type Cluster struct {
	Nodes []*Node

	out    *Lines
	binary string
}

// Node is a node in its own process. Only Call is safe for concurrent use.
type Node struct {
	ID, Dir  string
	HTTPPort int
	AppPort  int // of the application beside the node

	cluster *Cluster
	flags   []string
	process *child.Process
	http    http.Client
}

// New chooses the ports of three nodes. Their data is below dir. binary is the path of the quorate program.
func New(ctx context.Context, out *Lines, binary, dir string) (*Cluster, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	ports, err := listen.Spare(ctx, 3*Size)
	if err != nil {
		return nil, err
	}
	gossip, apps, apis := ports[:Size], ports[Size:2*Size], ports[2*Size:]
	seeds := make([]string, Size)
	for i, p := range gossip {
		seeds[i] = fmt.Sprintf("127.0.0.1:%d", p)
	}
	c := &Cluster{out: out, binary: binary}
	for i := range Size {
		id := fmt.Sprintf("n%d", i+1)
		n := &Node{ID: id, Dir: filepath.Join(dir, id), AppPort: apps[i], HTTPPort: apiPort(ctx, firstPort+i, apis[i]),
			cluster: c, http: http.Client{Timeout: AnswerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
		n.flags = []string{"--node-id", n.ID, "--data-dir", n.Dir, "--log-level", "error",
			"--app-port", fmt.Sprint(n.AppPort), "--http-port", fmt.Sprint(n.HTTPPort),
			"--grpc-port", "0", "--metrics-port", "0", "--bind-address", "127.0.0.1", "--peer-port", "0",
			"--gossip-port", fmt.Sprint(gossip[i]), "--join", strings.Join(seeds, ","),
			"--bootstrap-expect", fmt.Sprint(Size)}
		c.Nodes = append(c.Nodes, n)
	}
	return c, nil
}

// Start starts the process of the node. more has further flags of quorate run. They may be followed by "--" and the
// command of the application. A node that has ended can be started again.
func (n *Node) Start(more ...string) (err error) {
	n.process, err = child.Start(child.Options{
		Command: append(append([]string{n.cluster.binary, "run"}, n.flags...), more...),
		Env:     append(os.Environ(), "DEMO_NODE="+n.ID), Prefix: "  " + n.ID + " | ",
		Stdout: appLines{n.cluster.out}, Stderr: n.cluster.out,
	})
	return err
}

// Base returns the URL of the API.
func (n *Node) Base() string { return fmt.Sprintf("http://127.0.0.1:%d", n.HTTPPort) }

// Pid returns the id of the process.
func (n *Node) Pid() int { return n.process.Pid() }

// Kill ends the process with SIGKILL.
func (n *Node) Kill() {
	n.process.Signal(syscall.SIGKILL)
	<-n.process.Done()
}

// Ready waits until the node serves.
func (n *Node) Ready(ctx context.Context) error {
	return n.cluster.poll(ctx, "the node "+n.ID, func(ctx context.Context) error { return n.healthy(ctx) })
}

func (n *Node) healthy(ctx context.Context) error {
	return n.Call(ctx, http.MethodGet, "/v1.0/healthz", "", nil)
}

// Quorate runs a command of the quorate program for the node, and returns its output.
func (n *Node) Quorate(ctx context.Context, command ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, n.cluster.binary,
		append(command, "--data-dir", n.Dir)...).Output() //nolint:gosec // the program to show
	if err != nil {
		err = fmt.Errorf("quorate %s: %w", strings.Join(command, " "), err)
	}
	return out, err
}

// Call sends one request and decodes a successful response into v, unless v is nil.
func (n *Node) Call(ctx context.Context, verb, path, body string, v any) error {
	req, err := http.NewRequestWithContext(ctx, verb, n.Base()+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	return Do(&n.http, req, v)
}

// Do sends a request and decodes a successful response into v, unless v is nil. For a response with an error status
// it returns a *Refused.
func Do(c *http.Client, req *http.Request, v any) error {
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = &Refused{Status: resp.StatusCode,
			text: fmt.Sprintf("%s %s answered %s: %s", req.Method, req.URL.Path, resp.Status, text)}
	}
	if err != nil || v == nil || len(text) == 0 {
		return err
	}
	return json.Unmarshal(text, v)
}

// Refused is the error of a response with an error status.
type Refused struct {
	Status int
	text   string
}

func (r *Refused) Error() string { return r.text }

// Formed waits until all nodes serve and vote. From then on the cluster tolerates the failure of any one node.
func (c *Cluster) Formed(ctx context.Context) error {
	return c.poll(ctx, "the cluster", func(ctx context.Context) error {
		for _, n := range c.Nodes {
			if err := n.healthy(ctx); err != nil {
				return err
			}
		}
		groups, err := c.Nodes[0].groups(ctx)
		if err != nil {
			return err
		}
		for _, g := range groups {
			voters := 0
			for _, server := range g.Servers {
				if server.Voter {
					voters++
				}
			}
			if voters != Size {
				return fmt.Errorf("%d of %d nodes vote", voters, Size)
			}
		}
		return nil
	})
}

// group is the part of the output of quorate status that is needed here.
type group struct {
	Leader  string
	Servers []struct{ Voter bool }
}

func (n *Node) groups(ctx context.Context) ([]group, error) {
	out, err := n.Quorate(ctx, "status", "--json")
	if err != nil {
		return nil, err
	}
	var s struct{ Groups []group }
	err = json.Unmarshal(out, &s)
	return s.Groups, err
}

// Leader returns the id of the leader of the first group, as the node knows it.
func (n *Node) Leader(ctx context.Context) (string, error) {
	groups, err := n.groups(ctx)
	if err != nil || len(groups) == 0 {
		return "", err
	}
	return groups[0].Leader, nil
}

// poll waits until check returns nil. It returns an error at once if a node has ended.
func (c *Cluster) poll(ctx context.Context, what string, check func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := check(limit)
		if err == nil {
			return nil
		}
		for _, n := range c.Nodes {
			select {
			case <-n.process.Done():
				return fmt.Errorf("%s has ended: %w", n.ID, errors.Join(n.process.Err(), err))
			default:
			}
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("%s is not ready: %w", what, err)
		}
	}
}

// End stops all nodes, with their applications.
func (c *Cluster) End() {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range c.Nodes {
		if n.process == nil {
			continue
		}
		all.Go(func() {
			_ = n.process.Stop(ctx, syscall.SIGTERM) // one that must be killed has nothing to lose here
			n.http.CloseIdleConnections()
		})
	}
	all.Wait()
}

// apiPort returns the wanted port, or other if another process uses it.
func apiPort(ctx context.Context, wanted, other int) int {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", wanted))
	if err != nil {
		return other
	}
	_ = l.Close()
	return wanted
}
