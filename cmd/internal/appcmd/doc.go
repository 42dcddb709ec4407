// Package appcmd has the commands for applications that run on this machine: list, invoke, stop and logs. Dapr has
// commands with the same names.
//
// The package owns a record and an output file for each process of quorate run. The record is a hostshare.Note that
// describes the process, so that the commands can find the process. The file of the record is locked until the process
// ends. The output file has the output of the application. The package has no goroutines.
package appcmd

import (
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// Commands returns the commands of this package.
func Commands(s *command.Shell) []*cobra.Command {
	m := &commands{s}
	return []*cobra.Command{m.listCommand(), m.invokeCommand(), m.stopCommand(), m.logsCommand()}
}

// commands builds and runs the commands.
type commands struct{ *command.Shell }

// daprFlags are flags of Dapr's command line that concern Kubernetes.
type daprFlags struct {
	kubernetes bool
	namespace  string
}

func (f *daprFlags) bind(c *cobra.Command) {
	c.Flags().BoolVarP(&f.kubernetes, "kubernetes", "k", false, "refused: it exists in Dapr's command")
	c.Flags().StringVarP(&f.namespace, "namespace", "n", "", "refused: it exists in Dapr's command")
	for _, name := range []string{"kubernetes", "namespace"} {
		c.Flags().Lookup(name).Hidden = true
	}
}

// check returns a usage error if --kubernetes or --namespace is set. The given text becomes the hint of this error. It
// says what to do instead of using the flags.
func (f *daprFlags) check(instead string) error {
	if !f.kubernetes && f.namespace == "" {
		return nil
	}
	return command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.apps",
		Msg: "quorate does not talk to Kubernetes, so --kubernetes and --namespace cannot be served", Hint: instead})
}
