package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/node"
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
		return group(c, args)
	}
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	root.AddCommand(m.runCommand(), m.daprdCommand(), m.stateCommand(), m.configurationCommand(),
		m.storesCommand(), m.statusCommand(),
		m.membersCommand(), m.appsCommand(), m.locksCommand(), m.jobsCommand(), m.actorsCommand(), m.votersCommand(),
		m.transferCommand(), m.removeCommand(), m.leaveCommand(), m.doctorCommand(),
		m.healthCommand(), m.backupCommand(), m.snapshotCommand(), m.rescueCommand(), m.importCommand(),
		m.tokenCommand(), m.consoleCommand(), m.debugCommand(), m.configCommand(), m.versionCommand())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	each(root, func(c *cobra.Command) {
		c.DisableFlagsInUseLine = true
		c.Args = usageArgs(c.Args)
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(settings.FlagError(c.Flags(), err)) })
	})
	return root
}

// group is the action of a command that only has subcommands.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	near := suggest.For(args[0], names)
	if near != "" {
		near = "; did you mean " + near + "?"
	}
	return usagef("%s has no command %q%s (%s --help lists them)", c.CommandPath(), args[0], near, c.CommandPath())
}

// each calls f for c and every command below it.
func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}

// usageArgs returns a function that calls check and converts its errors to usage errors, which include the usage line
// of the command.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usagef("%v (usage: %s)", err, c.UseLine())
		}
		return nil
	}
}

// hasFlag reports whether any command has a long flag of that name.
func hasFlag(root *cobra.Command, name string) bool {
	found := false
	each(root, func(c *cobra.Command) { found = found || c.Flags().Lookup(name) != nil })
	return found
}

// resolve returns the settings of a command, without validating them.
func (m *Main) resolve(set *settings.Set, flags *pflag.FlagSet, command []string) (node.Config, error) {
	c, err := set.Resolve(settings.Input{
		Flags:      flags,
		Getenv:     m.getenv,
		ReadFile:   os.ReadFile,
		StateDir:   m.stateDir(),
		RuntimeDir: m.runtimeDir(),
		Host:       m.host(),
		Version:    m.Version.Version,
		Command:    command,
	})
	if err == nil && c.Data.Dir != "" {
		c.Data.Dir, err = filepath.Abs(c.Data.Dir)
	}
	return c, usage(err)
}

// host returns the name of this machine, or "" if it is unknown.
func (m *Main) host() string {
	if m.Hostname == nil {
		return ""
	}
	name, err := m.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// stateDir returns the user's directory for durable state, or "" if there is none.
func (m *Main) stateDir() string {
	if dir := m.getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	home := m.getenv("HOME")
	if home == "" && m.Home != nil {
		home = m.Home()
	}
	switch {
	case home == "":
		return ""
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support")
	default:
		return filepath.Join(home, ".local", "state")
	}
}

// runtimeDir returns the directory for the sockets of this user. It is XDG_RUNTIME_DIR/quorate if that variable is an
// absolute path. Otherwise it is a subdirectory of the temporary directory, with the user's id in its name.
func (m *Main) runtimeDir() string {
	if dir := m.getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "quorate")
	}
	tmp := m.getenv("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	return filepath.Join(tmp, "quorate-"+strconv.Itoa(os.Geteuid()))
}
