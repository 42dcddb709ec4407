// Package backupcmd has the commands that save, inspect and restore backups. It also has the command rescue, for a
// cluster that has permanently lost a majority of its voters. The package owns these commands, and the rescue of a node
// that cannot start.
package backupcmd

import (
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// Commands returns the commands of this package.
func Commands(s *command.Shell) []*cobra.Command {
	m := &commands{s}
	return []*cobra.Command{m.backupCommand(), m.rescueCommand()}
}

// commands builds and runs the commands.
type commands struct{ *command.Shell }
