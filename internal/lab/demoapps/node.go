package demoapps

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/listen"
)

const (
	grace      = 15 * time.Second // for a node to stop
	answerTime = 30 * time.Second // an order may wait for a new leader
	firstPort  = 3500             // of the APIs, if it and the next ones are free
)

// lines writes whole lines from several goroutines. It is safe for concurrent use.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// node is a node in its own process, with an application beside it.
type node struct {
	id, app, language, dir string

	process *child.Process
	http    http.Client
	api     atomic.Pointer[string] // its URL; nil until the node has printed it
}

func (n *node) start(ctx context.Context, out *lines, binary string, seeds []string, i int, command []string) error {
	appPort, err := listen.Spare(ctx, 1)
	if err != nil {
		return err
	}
	args := append([]string{binary, "run", "--node-id", n.id, "--data-dir", n.dir, "--log-level", "error",
		"--app-id", n.app, "--app-port", fmt.Sprint(appPort[0]), "--http-port", fmt.Sprint(apiPort(ctx, firstPort+i)),
		"--grpc-port", "0", "--metrics-port", "0",
		"--bind-address", "127.0.0.1", "--peer-port", "0", "--gossip-port",
		seeds[i][strings.LastIndexByte(seeds[i], ':')+1:],
		"--join", strings.Join(seeds, ","), "--bootstrap-expect", fmt.Sprint(size), "--"}, command...)
	n.http = http.Client{Timeout: answerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	n.process, err = child.Start(child.Options{
		Command: args, Env: append(os.Environ(), "DEMO_NODE="+n.id), Prefix: "  " + n.id + " | ",
		Stdout: &banner{node: n, out: out}, Stderr: out,
	})
	return err
}

// Write forwards lines.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// banner is a writer for the output of a node. It finds the address of the API in the banner that
// the node prints at its start, and forwards the output of the application.
type banner struct {
	node *node
	out  *lines
}

// Write receives one whole line per call.
func (b *banner) Write(p []byte) (int, error) {
	line := string(p)
	if strings.Contains(line, "== APP ==") {
		return b.out.Write(p)
	}
	if words := strings.Fields(line); len(words) == 4 && words[2] == "API" {
		b.node.api.CompareAndSwap(nil, &words[3])
	}
	return len(p), nil
}

func (n *node) base() string { return *n.api.Load() }

func (n *node) gone() bool {
	select {
	case <-n.process.Done():
		return true
	default:
		return false
	}
}

// kill kills the node without a graceful stop.
func (n *node) kill() {
	n.process.Signal(syscall.SIGKILL)
	<-n.process.Done()
}

func (n *node) stop(ctx context.Context) {
	_ = n.process.Stop(ctx, syscall.SIGTERM) // one that must be killed has nothing to lose here
	n.http.CloseIdleConnections()
}

// healthy returns nil if the node and its application serve.
func (n *node) healthy(ctx context.Context) error {
	if n.api.Load() == nil {
		return fmt.Errorf("%s has not printed its address", n.id)
	}
	return n.call(ctx, http.MethodGet, "/v1.0/healthz", "", nil)
}

// order is an order of a customer.
type order struct {
	ID    string `json:"id"`
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// String returns the order as JSON.
func (o order) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// receipt is the result of an order.
type receipt struct {
	Order    string `json:"order"`
	State    string `json:"state"`
	Left     int    `json:"left"`
	ServedBy string `json:"servedBy"`
}

// String returns the receipt as JSON.
func (r receipt) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// place sends an order through this node to the application orders, which may run on another node.
func (n *node) place(ctx context.Context, o order) (receipt, error) {
	var r receipt
	err := n.call(ctx, http.MethodPost, "/v1.0/invoke/orders/method/order", o.String(), &r)
	if err == nil && (r.Order != o.ID || r.State != "taken") {
		err = fmt.Errorf("order %s: the receipt is %s", o.ID, r)
	}
	return r, err
}

// call sends one request and decodes a successful response into v, unless v is nil.
func (n *node) call(ctx context.Context, verb, path, body string, v any) error {
	req, err := http.NewRequestWithContext(ctx, verb, n.base()+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	return do(&n.http, req, v)
}

// do sends a request and decodes a successful response into v, unless v is nil.
func do(c *http.Client, req *http.Request, v any) error {
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = &refused{status: resp.StatusCode,
			text: fmt.Sprintf("%s %s answered %s: %s", req.Method, req.URL.Path, resp.Status, text)}
	}
	if err != nil || v == nil || len(text) == 0 {
		return err
	}
	return json.Unmarshal(text, v)
}

// refused is the error of a response with an error status.
type refused struct {
	status int
	text   string
}

func (r *refused) Error() string { return r.text }

// apiPort returns the default port, or 0 if another process uses it.
func apiPort(ctx context.Context, port int) int {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0
	}
	_ = l.Close()
	return port
}
