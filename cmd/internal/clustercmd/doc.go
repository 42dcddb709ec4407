// Package clustercmd has the commands that show and change a cluster through the admin API of a node. The package owns
// these commands. Some of them show the status, members, applications and live calls of the cluster, and the link to
// its console. Others set voters, transfer leadership, remove servers and make tokens.
package clustercmd

import (
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// Commands returns the commands of this package.
func Commands(s *command.Shell) []*cobra.Command {
	m := &commands{s}
	return []*cobra.Command{m.statusCommand(), m.storesCommand(), m.membersCommand(), m.topCommand(), m.callsCommand(),
		m.appsCommand(), m.votersCommand(), m.transferCommand(), m.removeCommand(), m.leaveCommand(), m.tokenCommand(),
		m.consoleCommand(), m.dashboardCommand()}
}

// commands builds and runs the commands.
type commands struct{ *command.Shell }
