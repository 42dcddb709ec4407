// Package cli is the quorate program: its commands, what they print and how they end.
//
// It owns exit codes, the words of refusals, signals and terminals. It must never know
// how a node is built or how it does its work: a node is opened through Main.Open and
// asked through its HTTP and admin APIs. Only this package and settings below it see
// flags, files and the environment. A running node has one goroutine here, which waits
// for signals; it ends with the command.
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

// Node is what the run command needs of a running node. node.Node is one.
type Node interface {
	// Addresses tells where the node is found. It does not change.
	Addresses() node.Addresses
	// Wait returns nil once the node was asked to stop through its API, or when ctx ends;
	// or why the node can no longer do its work. The node is still open afterwards.
	Wait(ctx context.Context) error
	// Close stops the node in order; ctx bounds it. It is idempotent.
	Close(ctx context.Context) error
}

// Main is one call of the program. Every field must be set, but for Hostname and Exit.
type Main struct {
	Args    []string // without the name of the program
	Env     []string // "NAME=value"
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Version Version

	Hostname func() (string, error) // name of this machine; nil = unknown

	// Open starts a node; ctx bounds the start, not the life of the node.
	Open func(ctx context.Context, c node.Config, log *slog.Logger) (Node, error)
	// Check reads the component files of a node without starting it.
	Check func(ctx context.Context, c node.Config) (warnings []string, err error)

	// Signals starts to deliver wishes to stop, until the function it returns is called.
	// Only a running node asks for it: signals end every other command as usual.
	Signals func() (<-chan os.Signal, func())
	Exit    func(code int) // ends the process at once, for the second signal; nil = os.Exit
}

// Run does what the arguments say and returns the exit code: 0 fine, 1 failed, 2 wrong
// use. It prints why, one line per problem. When ctx ends a running node stops in order.
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
	return exitFailed
}

// usageError marks an error as wrong use of the program rather than a failure.
type usageError struct{ err error }

func (e *usageError) Error() string { return fault.Text(e.err) }
func (e *usageError) Unwrap() error { return e.err }

// usage marks err as wrong use; nil stays nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// usagef makes an error of wrong use.
func usagef(format string, args ...any) error {
	return usage(fault.New(fault.Invalid, "cli", fmt.Sprintf(format, args...)))
}

// flatten takes apart what errors.Join and usage put together.
func flatten(err error) []error {
	if u, ok := err.(*usageError); ok { // only the outermost layer is taken off
		return flatten(u.err)
	}
	joined, ok := err.(interface{ Unwrap() []error }) // only the outermost layer is taken apart
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

// isTerminal reports whether a person reads w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
