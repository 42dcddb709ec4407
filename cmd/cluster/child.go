package main

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

// grace is how long a node may take to end once it was asked to.
const grace = 15 * time.Second

// answerTime is how long an answer about health may take.
const answerTime = 5 * time.Second

// lines writes whole lines from several goroutines. Safe for concurrent use.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// child is a node that runs as a process of its own.
type child struct {
	id      string
	process *exec.Cmd
	http    http.Client
	api     atomic.Pointer[string] // host:port, once the node has said it
	ended   chan struct{}          // closed when the process is gone
	told    bool                   // its end was shown
}

// startChild starts a node. It gets a process group of its own: the Ctrl-C of the terminal
// is for this program, which then ends the nodes in order.
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

// read passes the log on, finds the address in what the node says to people, and waits for
// the end of the process.
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
	_ = n.process.Wait() // how it ended is in its state
}

// eachLine calls f for every line of r, however long, until the end.
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

// announced finds the address of the API in the line in which a node gives it.
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

// reason says how the process ended; only for one that is gone.
func (n *child) reason() string { return n.process.ProcessState.String() }

// command is what starts the node again, for a shell.
func (n *child) command() string {
	words := make([]string, len(n.process.Args))
	for i, w := range n.process.Args {
		if words[i] = w; strings.ContainsAny(w, " \t\n'\"\\$&;|<>()*?[]#~`!") || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// healthy asks the node whether it is a working part of the cluster.
func (n *child) healthy(ctx context.Context) error {
	if n.api.Load() == nil {
		return fmt.Errorf("%s does not say where it listens", n.id)
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
		return fmt.Errorf("%s is not ready, and its answer cannot be read: %w", n.id, err)
	}
	return errors.New(n.id + ": " + why.Message)
}

// terminate asks the process to end.
func (n *child) terminate() {
	if !n.gone() {
		_ = n.process.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	}
}

// wait waits until the process is gone, and does not wait for ever.
func (n *child) wait() {
	select {
	case <-n.ended:
	case <-time.After(grace):
		_ = n.process.Process.Kill()
		<-n.ended
	}
}

// free reports whether a port of 127.0.0.1 can be had at this moment.
func free(ctx context.Context, port int) bool {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
