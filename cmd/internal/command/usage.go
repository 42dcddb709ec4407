package command

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

// UsageError is an error caused by wrong use of the program.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return fault.Text(e.Err) }

func (e *UsageError) Unwrap() error { return e.Err }

// Usage returns a UsageError with err, or nil if err is nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// Usagef returns a UsageError with a formatted message.
func Usagef(format string, args ...any) error {
	return Usage(fault.New(fault.Invalid, "cli", fmt.Sprintf(format, args...)))
}

// RefuseEmpty returns a UsageError if one of the flags was given with an empty value. Without this check, a script
// with an unset variable could change more than it should.
func RefuseEmpty(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f.Changed && (f.Value.String() == "" || f.Value.String() == "[]") {
			return Usagef("--%s is empty (give it a value, or leave it out)", name)
		}
	}
	return nil
}

// Group is the action of a command that does nothing itself and has subcommands. Without arguments, it prints the help
// of the command. Otherwise it returns a UsageError, which suggests the subcommand that was probably meant.
func Group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	var names []string
	near := ""
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		names = append(names, sub.Name())
		if slices.Contains(sub.SuggestFor, args[0]) {
			near = sub.Name()
		}
	}
	near = cmp.Or(near, suggest.For(args[0], names))
	if near != "" {
		near = "; did you mean " + near + "?"
	}
	return Usagef("%s has no command %q%s (%s --help lists them)", c.CommandPath(), args[0], near, c.CommandPath())
}

// UsageArgs wraps check, so that its errors are of the type UsageError and include the usage line of the command. If
// check is nil, the result is nil.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return Usagef("%v (usage: %s)", err, c.UseLine())
		}
		return nil
	}
}
