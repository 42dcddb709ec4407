// Package cli implements the quorate program: its commands, their output and their exit codes.
//
// It owns exit codes, usage errors, signals and terminal output. It opens a node through Main.Open and uses the HTTP
// API and the admin API of the node. Only this package and package settings read flags, files and the environment.
// While a node runs, one goroutine of this package waits for signals; it ends with the command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// Exit codes of the program.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Node is what the run command needs of a running node. node.Node implements it.
type Node interface {
	// Addresses returns where the node listens. It does not change.
	Addresses() node.Addresses
	// Wait returns nil when a stop was requested through the API or ctx ended. It returns an error if the node can
	// no longer work. In both cases the node is still open.
	Wait(ctx context.Context) error
	// Close stops the node gracefully, within the limits of ctx. It is idempotent.
	Close(ctx context.Context) error
}

// Main is one run of the program. Every field must be set, except Program, Hostname, Home and Exit.
type Main struct {
	Program string   // by which the program was called; daprd implies the command of that name
	Args    []string // without the name of the program
	Env     []string // "NAME=value"
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Version Version

	Hostname func() (string, error) // returns the host name; nil = unknown
	Home     func() string          // the home directory of this user if HOME is not set; nil or "" = none

	// Open starts a node. ctx limits the start, not the time that the node runs.
	Open func(ctx context.Context, c node.Config, log *slog.Logger) (Node, error)
	// Check reads the component files of a node without starting it.
	Check func(ctx context.Context, c node.Config) (warnings []string, err error)

	// Signals starts to deliver the signals that stop a node. The returned function ends the delivery. Only a
	// running node uses it; other commands end with a signal as usual.
	Signals func() (<-chan os.Signal, func())
	Exit    func(code int) // ends the process immediately, on the second signal; nil = os.Exit
}

// Run executes the command in Args and returns the exit code: 0 for success, 1 for a failure, 2 for wrong usage. If
// the application of a node failed, Run returns the exit code of the application. It prints errors, one line per
// problem. When ctx ends, a running node stops gracefully.
func (m *Main) Run(ctx context.Context) int {
	err := m.execute(ctx)
	if err == nil {
		return exitOK
	}
	for _, e := range flatten(err) {
		fmt.Fprintf(m.Stderr, "quorate: %s\n", fault.Text(e))
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if app, ok := errors.AsType[*appError](err); ok && app.code > 0 {
		return app.code
	}
	return exitFailed
}

// usageError is an error caused by wrong use of the program.
type usageError struct{ err error }

func (e *usageError) Error() string { return fault.Text(e.err) }
func (e *usageError) Unwrap() error { return e.err }

// usage wraps err as wrong use. It returns nil for nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// usagef returns an error of wrong use.
func usagef(format string, args ...any) error {
	return usage(fault.New(fault.Invalid, "cli", fmt.Sprintf(format, args...)))
}

// flatten returns the errors that errors.Join combined in err. It removes the wrappers usageError and appError, which
// only determine the exit code.
func flatten(err error) []error {
	if u, ok := err.(*usageError); ok { // unwrap only the outermost layer
		return flatten(u.err)
	}
	if app, ok := err.(*appError); ok { // unwrap only the outermost layer
		return flatten(app.error)
	}
	joined, ok := err.(interface{ Unwrap() []error }) // unwrap only the outermost layer
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}

// getenv looks a variable up in Env; the last one of a name counts, as for os/exec.
func (m *Main) getenv(name string) string {
	for i := len(m.Env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(m.Env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
