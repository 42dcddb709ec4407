// Package benchcmd has the command quorate bench, which measures a running node. It sends requests to the HTTP API of
// the node, as an application does. The package owns only what its benchmarks create.
//
// Each client is a goroutine that sends one request after another. All goroutines end before a command returns. The
// keys that a benchmark writes begin with quorate-bench-. At the end, the benchmark deletes these keys, unless the flag
// --keep is given.
package benchcmd

import (
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// Commands returns the commands of this package.
func Commands(s *command.Shell) []*cobra.Command {
	m := &commands{s}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure the requests of a running node",
		Long: "Measure how many requests a running node answers, and how long they take. The clients share\n" +
			"the machine with the node, unless --address names another one.",
		RunE: command.Group,
	}
	c.AddCommand(m.saveCommand(), m.getCommand(), m.watchCommand(), m.lockCommand(), m.callCommand(),
		m.publishCommand())
	return []*cobra.Command{c}
}

// commands builds and runs the commands.
type commands struct{ *command.Shell }
