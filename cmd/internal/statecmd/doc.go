// Package statecmd has the command state and its subcommands. They read and write state through the HTTP API of a node.
// The package owns these commands.
package statecmd

import (
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// Commands returns the commands of this package.
func Commands(s *command.Shell) []*cobra.Command {
	m := &commands{s}
	return []*cobra.Command{m.stateCommand()}
}

// commands builds and runs the commands.
type commands struct{ *command.Shell }
