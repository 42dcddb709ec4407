package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/appcmd"
	"github.com/quorate/quorate/cmd/internal/backupcmd"
	"github.com/quorate/quorate/cmd/internal/benchcmd"
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
		m.actorsCommand(), m.topicsCommand(), m.publishCommand(), m.workflowsCommand(), m.doctorCommand(),
		m.healthCommand(), m.debugCommand(), m.configCommand(), m.versionCommand())
	root.AddCommand(appcmd.Commands(m.Shell)...)
	root.AddCommand(statecmd.Commands(m.Shell)...)
	root.AddCommand(benchcmd.Commands(m.Shell)...)
	root.AddCommand(backupcmd.Commands(m.Shell)...)
	root.AddCommand(clustercmd.Commands(m.Shell)...)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	group(root)
	each(root, func(c *cobra.Command) {
		c.DisableFlagsInUseLine = true
		c.Args = command.UsageArgs(c.Args)
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
			if c.HasSubCommands() && c.Flags().NArg() > 0 { // the flag belongs to a command that does not exist
				return command.Group(c, c.Flags().Args())
			}
			return command.Usage(settings.FlagError(c.Flags(), err))
		})
	})
	return root
}

// group puts each command under one of the headings Use, Operate and Inspect in the help. A test checks that every
// command has a heading.
func group(root *cobra.Command) {
	for _, g := range []struct{ id, title, names string }{
		{"use", "Use: run applications and their data", "run daprd list invoke publish logs stop state configuration " +
			"bench"},
		{"operate", "Operate: change a cluster", "voters transfer-leader remove leave backup rescue token jobs " +
			"actors locks topics workflows config"},
		{"inspect", "Inspect: see what happens", "status members apps stores top calls doctor health console " +
			"dashboard debug version"},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title + ":"})
		for _, name := range strings.Fields(g.names) {
			for _, c := range root.Commands() {
				if c.Name() == name {
					c.GroupID = g.id
				}
			}
		}
	}
}

// each applies f to c and to every command below it.
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
