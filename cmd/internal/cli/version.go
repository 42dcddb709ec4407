package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Version is the version of the program.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // empty = unknown
}

// versionReport is the JSON output of the version command.
type versionReport struct {
	Version
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
	var out output
	c := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionReport{Version: m.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if out.json() {
				return writeJSON(m.Stdout, v)
			}
			_, err := fmt.Fprintln(m.Stdout, m.version())
			return err
		},
	}
	out.bind(c)
	return c
}
