package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/child"
)

// AnswerTime is the timeout of a request to the API. It is long, because the request may wait for the election of a
// leader.
const AnswerTime = 30 * time.Second

// Node is a node in its own process. Set the exported fields before the first start. Its methods, except Start and
// Beside, are safe for concurrent use.
type Node struct {
	Process
	ID         string
	Program    string // path of the quorate program
	DataDir    string
	Flags      []string // flags for every start, in addition to --node-id and --data-dir
	HTTPPort   int      // port of the API, on 127.0.0.1
	GossipPort int
	Client     http.Client // for requests to the API
}

// Loopback returns a node whose ports are all on 127.0.0.1. The peer port, the gRPC port and the metrics port are any
// free ports.
func Loopback(id, program, dataDir string, httpPort, gossipPort int) *Node {
	return &Node{ID: id, Program: program, DataDir: dataDir, HTTPPort: httpPort, GossipPort: gossipPort,
		Flags: []string{"--bind-address", "127.0.0.1", "--http-port", fmt.Sprint(httpPort), "--gossip-port",
			fmt.Sprint(gossipPort), "--peer-port", "0", "--grpc-port", "0", "--metrics-port", "0"},
		Client: http.Client{Timeout: AnswerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
}

// Start starts the node as a process. It appends args to the command line of quorate run. The arguments are flags, and
// may end with "--" and the command of an application. A node that has ended can be started again.
func (n *Node) Start(args ...string) error {
	n.Options.Command = append(append([]string{n.Program, "run", "--node-id", n.ID, "--data-dir", n.DataDir},
		n.Flags...), args...)
	if err := n.Process.Start(); err != nil {
		return fmt.Errorf("%s does not start: %w", n.ID, err)
	}
	return nil
}

// Beside returns a process for an application of this node. It also adds the port of the application to the flags of
// the node, so it must be called before the first start of the node. It starts neither the application nor the node.
//
// As with Dapr, the application finds its own port in APP_PORT and the API port of the node in DAPR_HTTP_PORT. The
// parameter env has additional variables.
func (n *Node) Beside(command []string, port int, env ...string) *Process {
	n.Flags = append(n.Flags, "--app-port", fmt.Sprint(port))
	return &Process{Options: child.Options{Command: command, Env: append(append(os.Environ(),
		fmt.Sprintf("APP_PORT=%d", port), fmt.Sprintf("DAPR_HTTP_PORT=%d", n.HTTPPort)), env...)}}
}

// Address returns the host and the port of the API, in the form host:port.
func (n *Node) Address() string { return fmt.Sprintf("127.0.0.1:%d", n.HTTPPort) }

// Base returns the URL of the API.
func (n *Node) Base() string { return "http://" + n.Address() }

// Gossip returns the host and the port that a joining node contacts, in the form host:port.
func (n *Node) Gossip() string { return fmt.Sprintf("127.0.0.1:%d", n.GossipPort) }

// Healthy returns nil if the node serves requests, and otherwise an error with the reason. A node that is starting, or
// that was removed from the cluster, does not serve requests.
func (n *Node) Healthy(ctx context.Context) error {
	err := n.Call(ctx, http.MethodGet, "/v1.0/healthz", "", nil)
	if r := (*Refused)(nil); errors.As(err, &r) {
		return fmt.Errorf("%s: %s", n.ID, r.Message())
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s has not opened the port of its API", n.ID)
	}
	return err
}

// Call sends one request and decodes a successful response into v, unless v is nil. For a response with an error
// status it returns a *Refused.
func (n *Node) Call(ctx context.Context, verb, path, body string, v any) error {
	req, err := http.NewRequestWithContext(ctx, verb, n.Base()+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	return Do(&n.Client, req, v)
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
		err = &Refused{Status: resp.StatusCode, Body: string(text), request: req.Method + " " + req.URL.Path}
	}
	if err != nil || v == nil || len(text) == 0 {
		return err
	}
	return json.Unmarshal(text, v)
}

// Refused is the error for a response with an error status.
type Refused struct {
	Status  int
	Body    string
	request string
}

func (r *Refused) Error() string {
	return fmt.Sprintf("%s answered %d %s: %s", r.request, r.Status, http.StatusText(r.Status), r.Body)
}

// Message returns the message of an error of the API, or the whole body if it has none.
func (r *Refused) Message() string {
	var body struct{ Message string }
	if err := json.Unmarshal([]byte(r.Body), &body); err != nil || body.Message == "" {
		return r.Body
	}
	return body.Message
}

// Quorate runs a command of the quorate program for the node, and returns its output.
func (n *Node) Quorate(ctx context.Context, command ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, n.Program, append(command, "--data-dir", n.DataDir)...)
	cmd.Env = n.Options.Env
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		err = fmt.Errorf("quorate %s: %w", strings.Join(command, " "), err)
	}
	return out, err
}

// Status returns what quorate status prints.
func (n *Node) Status(ctx context.Context) (s schema.NodeStatus, err error) {
	out, err := n.Quorate(ctx, "status", "--json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// Voters returns the number of voters of a group.
func Voters(g schema.GroupStatus) (voters int) {
	for _, s := range g.Servers {
		if s.Voter {
			voters++
		}
	}
	return voters
}
