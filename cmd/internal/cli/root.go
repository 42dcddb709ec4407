package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/backupcmd"
	"github.com/quorate/quorate/cmd/internal/clustercmd"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/cmd/internal/statecmd"
)

// execute finds the command and runs it.
func (m *Main) execute(ctx context.Context) error {
	root := m.root()
	root.SetArgs(settings.DoubleDash(m.args(), func(name string) bool { return hasFlag(root, name) }))
	return root.ExecuteContext(ctx)
}

// root builds the command tree.
func (m *Main) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "quorate",
		Short: "A Dapr-compatible sidecar with a built-in, Raft-replicated state store",
		Long: "Quorate is a Dapr-compatible sidecar with a built-in, Raft-replicated state store. It serves\n" +
			"the HTTP and gRPC APIs of Dapr to the application beside it. No Redis and no control plane\n" +
			"is needed.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
	}
	// Version and SetVersionTemplate of cobra would link text/template, and with it every method of every type.
	version := root.Flags().BoolP("version", "v", false, "version for quorate")
	root.RunE = func(c *cobra.Command, args []string) error {
		if *version {
			_, err := fmt.Fprintln(m.Stdout, m.version())
			return err
		}
		return command.Group(c, args)
	}
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	root.AddCommand(m.runCommand(), m.daprdCommand(), m.configurationCommand(), m.locksCommand(), m.jobsCommand(),
		m.actorsCommand(), m.doctorCommand(), m.healthCommand(), m.debugCommand(), m.configCommand(),
		m.versionCommand())
	root.AddCommand(statecmd.Commands(m.Shell)...)
	root.AddCommand(backupcmd.Commands(m.Shell)...)
	root.AddCommand(clustercmd.Commands(m.Shell)...)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	each(root, func(c *cobra.Command) {
		c.DisableFlagsInUseLine = true
		c.Args = command.UsageArgs(c.Args)
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
			if c.HasSubCommands() && c.Flags().NArg() > 0 { // the flag is one of a command that does not exist
				return command.Group(c, c.Flags().Args())
			}
			return command.Usage(settings.FlagError(c.Flags(), err))
		})
	})
	return root
}

// each calls f for c and every command below it.
func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}

// hasFlag reports whether any command has a long flag of that name.
func hasFlag(root *cobra.Command, name string) bool {
	found := false
	each(root, func(c *cobra.Command) { found = found || c.Flags().Lookup(name) != nil })
	return found
}
