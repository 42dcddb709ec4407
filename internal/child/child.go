// Package child runs a command as a child process, such as an application beside its node.
//
// It owns the process group of the command and the prefix of its output lines, and it stops the command. A signal goes
// to the whole process group, so it also reaches the processes that the command has started. A Process has one
// goroutine that waits for the command, and one for each output stream. All of them end with the command.
package child

import (
	"cmp"
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
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Options describe the command to run. Command, Stdout and Stderr are required.
type Options struct {
	Command []string
	Dir     string   // working directory; empty = that of this program
	Env     []string // the whole environment, as "NAME=value"; nil = that of this program
	Prefix  string   // printed before every line
	Stdout  io.Writer
	Stderr  io.Writer
	Copy    io.Writer // gets both outputs, without the prefix; nil = nothing. Its errors are ignored
	// Thread, if set, is called on the OS thread that starts the command. It may change that thread, for example its
	// network namespace, because the thread runs nothing else and ends with the command.
	Thread func() error
	// Death is the signal that the kernel sends to the command when this program dies, on Linux; 0 = SIGTERM.
	Death syscall.Signal
}

// outputPatience is how long a Process waits for the end of the output after the command has ended. A process that the
// command has started may outlive the command and keep the output open.
const outputPatience = 2 * time.Second

// Process is a started command. All methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a command. It returns fault.NotFound if the program does not exist, and fault.Invalid if it cannot be
// started for another reason.
func Start(o Options) (*Process, error) {
	cmd := exec.Command(o.Command[0], o.Command[1:]...) //nolint:gosec // the user chose the command
	cmd.Dir, cmd.Env, cmd.SysProcAttr = o.Dir, o.Env, attributes(cmp.Or(o.Death, syscall.SIGTERM))
	out, errs := newPrefixer(o.Stdout, o.Copy, o.Prefix), newPrefixer(o.Stderr, o.Copy, o.Prefix)
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.WaitDelay = outputPatience
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Options.Death to the command when the thread that started the command ends. A locked thread
		// lives as long as its goroutine.
		runtime.LockOSThread()
		var err error
		if o.Thread == nil {
			defer runtime.UnlockOSThread()
		} else {
			err = o.Thread()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		if p.err = cmd.Wait(); errors.Is(p.err, exec.ErrWaitDelay) { // the command itself ended with 0
			p.err = nil
		}
		out.flush()
		errs.flush()
		close(p.done)
	}()
	if err := <-started; err != nil {
		code := fault.Invalid
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = fault.NotFound
		}
		return nil, &fault.Error{Code: code, Op: "child.Start", Msg: "the command " + o.Command[0] + " cannot be run",
			Hint: "give a program and its arguments; for shell syntax use: sh -c '...'", Err: err}
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil if the exit code of the command was 0. Otherwise it returns an error that says how the command
// ended. It must be called only after Done is closed.
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

// ExitCode returns the exit code of the command. If a signal ended the command, it returns 128 plus the number of the
// signal, like a shell. It must be called only after Done is closed.
func (p *Process) ExitCode() int {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process group of the command. It does nothing after the command has ended.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // the process group may have ended already
	}
}

// Stop sends the signal s to the command and waits until the command has ended. If ctx ends first, it kills the
// command and returns fault.Timeout. Stop is idempotent.
func (p *Process) Stop(ctx context.Context, s syscall.Signal) error {
	p.Signal(s)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.Signal(syscall.SIGKILL)
	<-p.done
	return fault.New(fault.Timeout, "child.Stop",
		fmt.Sprintf("the command %s did not end on %s and was killed", p.cmd.Args[0], s))
}

// maxLine is the size of a line, in bytes, at which a prefixer prints the line without waiting for its end.
const maxLine = 64 << 10

// prefixer prints a prefix before every line.
type prefixer struct {
	to     io.Writer
	copied io.Writer // nil = none
	prefix string

	mu   sync.Mutex // guards line
	line []byte
}

func newPrefixer(to, copied io.Writer, prefix string) *prefixer {
	return &prefixer{to: to, copied: copied, prefix: prefix}
}

// Write passes each complete line to the underlying writer in one call, so that lines of several commands do not mix.
// It also passes an unfinished line that has reached maxLine.
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
	_, _ = fmt.Fprintf(p.to, "%s%s\n", p.prefix, p.line) // there is no place to report an error
	if p.copied != nil {
		_, _ = fmt.Fprintf(p.copied, "%s\n", p.line)
	}
	p.line = p.line[:0]
}

func (p *prefixer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.line) > 0 {
		p.emit()
	}
}
