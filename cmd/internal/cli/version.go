package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Version says which program this is.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // empty = unknown
}

// versionReport is what the version command tells.
type versionReport struct {
	Version
	Go   string `json:"go"`
	OS   string `json:"os"`
	Arch string `json:"arch"`
}

func (m *Main) versionCommand() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "version [flags]",
		Short: "Say which version this is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionReport{Version: m.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if out.json() {
				return writeJSON(m.Stdout, v)
			}
			commit := ""
			if v.Commit != "" {
				commit = " commit " + v.Commit
			}
			_, err := fmt.Fprintf(m.Stdout, "quorate %s %s %s/%s%s\n", v.Version.Version, v.Go, v.OS, v.Arch, commit)
			return err
		},
	}
	out.bind(c)
	return c
}
