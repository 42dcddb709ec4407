// Package appcmd owns the commands for applications on this machine: list, invoke, stop and logs. Their names are those
// of Dapr's command line. The package also owns the record of each running quorate run process, and the file with the
// output of its application. With this record, the commands find the process.
//
// A record is a note of package hostshare. The kernel unlocks the note when its process ends. The package has no
// goroutines.
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

// check returns a usage error if --kubernetes or --namespace is set. The hint of the error is the text in the
// parameter instead.
func (f *daprFlags) check(instead string) error {
	if !f.kubernetes && f.namespace == "" {
		return nil
	}
	return command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.apps",
		Msg: "quorate does not talk to Kubernetes, so --kubernetes and --namespace cannot be served", Hint: instead})
}
