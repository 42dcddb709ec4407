package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// grace is how long a node may take to stop.
const grace = 15 * time.Second

// answerTime is the timeout of a health request.
const answerTime = 5 * time.Second

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

// child is a node in its own process.
type child struct {
	id      string
	process *exec.Cmd
	http    http.Client
	api     atomic.Pointer[string] // host:port; nil until the node has printed it
	ended   chan struct{}          // closed when the process has ended
	shown   bool                   // its end was reported
}

// startChild starts a node in its own process group. So Ctrl-C in the terminal reaches only this program, which then
// stops the nodes gracefully.
func startChild(id string, out *lines, binary string, args ...string) (*child, error) {
	cmd := exec.Command(binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	logs, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	banner, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	n := &child{id: id, process: cmd, http: http.Client{Timeout: answerTime}, ended: make(chan struct{})}
	go n.read(logs, banner, out)
	return n, nil
}

// read reads the log of the node until the process ends, and forwards it. It finds the address of the node in the
// banner that the node prints at its start.
func (n *child) read(logs, banner io.Reader, out *lines) {
	defer close(n.ended)
	var wg sync.WaitGroup
	wg.Go(func() {
		eachLine(banner, func(line string) {
			if address := announced(line); address != "" {
				n.api.CompareAndSwap(nil, &address)
			}
		})
	})
	eachLine(logs, func(line string) { out.say("%s | %s", n.id, line) })
	wg.Wait()
	_ = n.process.Wait() // its state tells how it ended
}

// eachLine calls f for every line of r, of any length, until EOF.
func eachLine(r io.Reader, f func(line string)) {
	for b := bufio.NewReader(r); ; {
		line, err := b.ReadString('\n')
		if line != "" {
			f(strings.TrimRight(line, "\n"))
		}
		if err != nil {
			return
		}
	}
}

// announced returns the address of the API if the line contains it.
func announced(line string) string {
	if words := strings.Fields(line); len(words) == 2 && words[0] == "API" {
		return strings.TrimPrefix(words[1], "http://")
	}
	return ""
}

func (n *child) address() string { return *n.api.Load() }
func (n *child) pid() int        { return n.process.Process.Pid }

func (n *child) gone() bool {
	select {
	case <-n.ended:
		return true
	default:
		return false
	}
}

// reason returns how the process ended. Call it only after the end.
func (n *child) reason() string { return n.process.ProcessState.String() }

// command returns the shell command that starts the node again.
func (n *child) command() string {
	words := make([]string, len(n.process.Args))
	for i, w := range n.process.Args {
		if words[i] = w; strings.ContainsAny(w, " \t\n'\"\\$&;|<>()*?[]#~`!") || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// healthy returns nil if the node is a working member of the cluster.
func (n *child) healthy(ctx context.Context) error {
	if n.api.Load() == nil {
		return fmt.Errorf("%s has not printed its address", n.id)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.address()+"/v1.0/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	var why struct {
		Message string `json:"message"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&why); err != nil {
		return fmt.Errorf("%s is not ready, and its response cannot be read: %w", n.id, err)
	}
	return errors.New(n.id + ": " + why.Message)
}

// terminate sends SIGTERM to the process.
func (n *child) terminate() {
	if !n.gone() {
		_ = n.process.Process.Signal(syscall.SIGTERM) // it may have ended already
	}
}

// wait waits until the process has ended, with a time limit.
func (n *child) wait() {
	select {
	case <-n.ended:
	case <-time.After(grace):
		_ = n.process.Process.Kill()
		<-n.ended
	}
}

// free reports whether a port of 127.0.0.1 is free now.
func free(ctx context.Context, port int) bool {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
