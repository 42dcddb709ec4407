// Package child runs a command beside the program: an application beside its node, or one
// node of several.
//
// It owns the process group of the command, the prefix of what it prints, and its end:
// what the command has started is ended with it. It must never know nodes or settings. A
// Process has a goroutine that waits for the command and one for each stream it prints to;
// all end with the command.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

// Options say what to run. Command, Stdout and Stderr are required.
type Options struct {
	Command []string
	Dir     string   // empty = that of the program
	Env     []string // "NAME=value", complete
	Prefix  string   // before every line that is printed
	Stdout  io.Writer
	Stderr  io.Writer
}

// Process is a command that was started. All methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start runs a command. The error is not_found if there is no such program, else invalid.
func Start(o Options) (*Process, error) {
	cmd := exec.Command(o.Command[0], o.Command[1:]...) //nolint:gosec // it is what the person asked for
	cmd.Dir, cmd.Env, cmd.SysProcAttr = o.Dir, o.Env, attributes()
	out, errs := newPrefixer(o.Stdout, o.Prefix), newPrefixer(o.Stderr, o.Prefix)
	cmd.Stdout, cmd.Stderr = out, errs
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ends the command with the thread that started it; a thread that a
		// goroutine holds lives as long as that.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		out.flush()
		errs.flush()
		close(p.done)
	}()
	if err := <-started; err != nil {
		code := fault.Invalid
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = fault.NotFound
		}
		return nil, &fault.Error{Code: code, Op: "child.Start", Msg: "the command " + o.Command[0] + " cannot be run", Hint: "give a program and its arguments; quote what a shell is to read: sh -c '...'", Err: err}
	}
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the command ended, once Done is closed: nil for exit code 0.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return fault.New(fault.Internal, "child.Wait", "the command "+p.cmd.Args[0]+" ended: "+exit.String())
	}
	return fault.Wrap(p.err, "child.Wait", "the command "+p.cmd.Args[0])
}

// Signal sends a signal to the command and what it has started.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may end at this very moment
	}
}

// Stop asks the command to end and waits; when ctx ends it is killed. Idempotent.
func (p *Process) Stop(ctx context.Context, s syscall.Signal) error {
	p.Signal(s)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.Signal(syscall.SIGKILL)
	<-p.done
	return fault.New(fault.Timeout, "child.Stop", fmt.Sprintf("the command %s did not end on %s and was killed", p.cmd.Args[0], s))
}

// maxLine is the longest line that is held back for its end, in bytes.
const maxLine = 64 << 10

// prefixer puts a prefix before every line.
type prefixer struct {
	to     io.Writer
	prefix string

	mu   sync.Mutex // guards line
	line []byte
}

func newPrefixer(to io.Writer, prefix string) *prefixer { return &prefixer{to: to, prefix: prefix} }

// Write passes complete lines on, each in one call, so that those of several commands do
// not mix.
func (p *prefixer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := len(b)
	for len(b) > 0 {
		text, rest, ended := strings.Cut(string(b), "\n")
		p.line = append(p.line, text...)
		b = b[len(b)-len(rest):]
		if ended || len(p.line) >= maxLine {
			p.emit()
		}
	}
	return size, nil
}

func (p *prefixer) emit() {
	_, _ = fmt.Fprintf(p.to, "%s%s\n", p.prefix, p.line) // nobody could be told
	p.line = p.line[:0]
}

func (p *prefixer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.line) > 0 {
		p.emit()
	}
}
