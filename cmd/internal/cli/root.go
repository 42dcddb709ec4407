package cli

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/node"
)

// execute finds the command and runs it.
func (m *Main) execute(ctx context.Context) error {
	root := m.root()
	root.SetArgs(settings.DoubleDash(m.Args, func(name string) bool { return hasFlag(root, name) }))
	return root.ExecuteContext(ctx)
}

// root builds the tree of commands.
func (m *Main) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "quorate",
		Short:         "A runtime sidecar with a replicated state store of its own",
		Long:          "Quorate is a runtime sidecar: it stands beside an application and keeps its state,\nreplicated by Raft, behind a plain HTTP API. No other server is needed.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
	}
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	root.AddCommand(m.runCommand(), m.stateCommand(), m.storesCommand(), m.statusCommand(), m.membersCommand(), m.appsCommand(), m.transferCommand(), m.removeCommand(), m.leaveCommand(), m.doctorCommand(), m.healthCommand(), m.snapshotCommand(), m.rescueCommand(), m.importCommand(), m.tokenCommand(), m.configCommand(), m.versionCommand())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	each(root, func(c *cobra.Command) {
		c.DisableFlagsInUseLine = true
		c.Args = usageArgs(c.Args)
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(settings.FlagError(c.Flags(), err)) })
	})
	return root
}

// group is the action of a command that only has others below it.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	c.SuggestionsMinimumDistance = 2
	near := ""
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		near = "; did you mean " + s[0] + "?"
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

// usageArgs marks refused arguments as wrong use and says how the command is used.
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

// resolve settles the settings of a command, not yet validated.
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

// host is the name of this machine; empty where it has none.
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

// stateDir is the user's directory for durable state; empty where nothing names one.
func (m *Main) stateDir() string {
	if dir := m.getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	home := m.getenv("HOME")
	switch {
	case home == "":
		return ""
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support")
	default:
		return filepath.Join(home, ".local", "state")
	}
}

// runtimeDir is the directory for the user's sockets. Where the system has none it lies
// in the directory for temporary files, under a name of the user's own.
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
