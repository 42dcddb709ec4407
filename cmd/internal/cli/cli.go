// Package cli implements the quorate program: its commands, their output and their exit codes. It starts a node through
// Main.Open. The package owns exit codes and the process of a running node.
//
// Package cli adds the commands of the packages appcmd, backupcmd, benchcmd, clustercmd and statecmd to the program.
// Only packages below cmd/internal parse flags and the settings file.
//
// The goroutines of the package wait for signals, for the node, and for the processes of a run file. They end when the
// command ends.
package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/quorate/quorate/cmd/internal/command"
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

// Main is one run of the program. Every field must be set, except Program and Exit.
type Main struct {
	*command.Shell
	Program string   // name with which the program was called; daprd = run the command daprd
	Args    []string // without the name of the program

	// Open starts a node. ctx limits the start, not the time that the node runs.
	Open func(ctx context.Context, c node.Config, log *slog.Logger) (Node, error)
	// Check reads the component files of a node without starting it.
	Check func(ctx context.Context, c node.Config) (warnings []string, err error)
	Exit  func(code int) // ends the process immediately, on the second signal; nil = os.Exit
}

// Run executes the command in Args and returns the exit code: 0 for success, 1 for a failure, 2 for wrong usage, or
// the exit code of a failed application. It prints errors, one line per problem. When ctx ends, a running node stops
// gracefully.
func (m *Main) Run(ctx context.Context) int {
	err := m.execute(ctx)
	if err == nil {
		return exitOK
	}
	for _, e := range flatten(err) {
		fmt.Fprintf(m.Stderr, "quorate: %s\n", fault.Text(e))
	}
	if _, ok := errors.AsType[*command.UsageError](err); ok {
		return exitUsage
	}
	if app, ok := errors.AsType[*appError](err); ok && app.code > 0 {
		return app.code
	}
	return exitFailed
}

// flatten splits an error of errors.Join into its parts. It also unwraps UsageError and appError, because these
// wrappers only determine the exit code.
func flatten(err error) []error {
	if u, ok := err.(*command.UsageError); ok { // unwrap only the outermost layer
		return flatten(u.Err)
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
