package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// versionReport is the JSON output of the version command.
type versionReport struct {
	command.Version
	Go   string `json:"go"`
	OS   string `json:"os"`
	Arch string `json:"arch"`
}

// version returns one line with the version and what the program was built with.
func (m *Main) version() string {
	commit := ""
	if m.Version.Commit != "" {
		commit = " commit " + m.Version.Commit
	}
	return fmt.Sprintf("quorate %s %s %s/%s%s", m.Version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		commit)
}

func (m *Main) versionCommand() *cobra.Command {
	var out command.Output
	c := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionReport{Version: m.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if out.JSON() {
				return command.WriteJSON(m.Stdout, v)
			}
			_, err := fmt.Fprintln(m.Stdout, m.version())
			return err
		},
	}
	out.Bind(c)
	return c
}
