// Package launcher starts quorate nodes as processes, watches them and kills them. All commands and tests that run
// nodes in other processes use it: the local cluster, the demos, the fault tests and the comparison with other systems.
// The package owns these processes.
//
// The package uses only the command line, the output and the HTTP API of a node. It runs each process with
// internal/child, which starts a few goroutines for the process.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/child"
)

// grace is how long Stop lets a process end by itself.
const grace = 15 * time.Second

// Process is a command that can be started again after it has ended. Set Options before the first start. Its methods
// are safe for concurrent use.
type Process struct {
	// Options describe the command. A nil Env is the environment of this program, and a nil Stdout or Stderr discards
	// the output.
	Options child.Options

	mu      sync.Mutex
	current *child.Process // guarded by mu; nil before the first start
}

// Start starts the process. It returns an error if the process runs already.
func (p *Process) Start() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil && !ended(p.current) {
		return fmt.Errorf("process %d runs already", p.current.Pid())
	}
	o := p.Options
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	started, err := child.Start(o)
	if err == nil {
		p.current = started
	}
	return err
}

func ended(p *child.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// Current returns the process that was started last, which may have ended. It returns nil before the first start.
func (p *Process) Current() *child.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Running reports whether the process was started and has not ended.
func (p *Process) Running() bool {
	c := p.Current()
	return c != nil && !ended(c)
}

// Pid returns the process id. The process must have been started.
func (p *Process) Pid() int { return p.Current().Pid() }

// Ended returns a channel that is closed when the process has ended. The process must have been started.
func (p *Process) Ended() <-chan struct{} { return p.Current().Done() }

// Signal sends a signal to the process, and to the processes that it has started. It does nothing if the process does
// not run.
func (p *Process) Signal(s syscall.Signal) {
	if c := p.Current(); c != nil {
		c.Signal(s)
	}
}

// End sends a signal and waits until the process has ended. It returns an error if this takes longer than patience.
// This can happen even with SIGKILL, if the process hangs on its disk.
func (p *Process) End(s syscall.Signal, patience time.Duration) error {
	c := p.Current()
	if c == nil {
		return nil
	}
	c.Signal(s)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.Done():
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d goes on %s after %s", c.Pid(), patience, s)
	}
}

// Kill ends the process with SIGKILL, and waits until it has ended.
func (p *Process) Kill() {
	if c := p.Current(); c != nil {
		c.Signal(syscall.SIGKILL)
		<-c.Done()
	}
}

// Stop ends the process with SIGTERM, and waits until it has ended. After 15 s it kills the process and returns an
// error.
func (p *Process) Stop() error {
	c := p.Current()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return c.Stop(ctx, syscall.SIGTERM)
}

// StopAll calls Stop of all processes concurrently, and returns all errors, joined.
func StopAll(all ...*Process) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() { errs[i] = p.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Shell returns the command of the process as a line for a shell.
func (p *Process) Shell() string {
	words := make([]string, len(p.Options.Command))
	for i, w := range p.Options.Command {
		if words[i] = w; strings.ContainsAny(w, " \t\n'\"\\$&;|<>()*?[]#~`!") || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Lines writes lines to a writer. It is safe for concurrent use. Each call writes whole lines, so lines of different
// goroutines do not mix.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLines returns Lines that write to w.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Say formats one line like fmt.Printf, and writes the line with a newline at its end.
func (l *Lines) Say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Write writes b to the underlying writer. b must consist of whole lines.
func (l *Lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
