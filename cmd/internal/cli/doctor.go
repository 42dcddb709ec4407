package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *Main) doctorCommand() *cobra.Command {
	set, out := settings.New(), output{}
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Look for what is wrong with a node and around it",
		Long: "Look for what is wrong. If a node runs on the data directory it is asked to examine itself and,\n" +
			"with every other node, ports both ways, clocks, versions and settings. If none runs, what a\n" +
			"start with the same flags would meet is examined: disk, limits, ports, nodes to join. The\n" +
			"exit code is 1 if a check fails.",
		Example: "  quorate doctor\n  quorate doctor --data-dir ./n1 --join a.example,b.example --json",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		config, err := m.resolve(set, c.Flags(), nil)
		if err != nil {
			return err
		}
		found, err := m.examine(c.Context(), config)
		if err != nil {
			return err
		}
		if out.json() {
			err = writeJSON(m.Stdout, found)
		} else {
			err = printCheckup(m.Stdout, found)
		}
		if err == nil && found.Worst() == api.CheckFail {
			err = fault.New(fault.Internal, "cli.doctor", "a check has failed")
		}
		return err
	}
	withSettings(c, set)
	out.bind(c)
	return c
}

// examine asks the node that runs on the data directory, or looks itself if none runs.
func (m *Main) examine(ctx context.Context, c node.Config) (api.Checkup, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*adminTime)
	defer cancel()
	dir, err := chosen(ctx, c)
	if err != nil {
		return api.Checkup{}, err
	}
	if dir != "" && runs(ctx, dir) {
		var found api.Checkup
		err := (&adminClient{dataDir: dir}).get(ctx, apihttp.AdminDoctorPath, &found)
		return found, err
	}
	return node.Examine(ctx, c), nil
}

// runs reports whether a process holds the admin socket of a data directory.
func runs(ctx context.Context, dir string) bool {
	path, err := apihttp.FindAdmin(dir)
	if err != nil {
		return false
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	c, err := dialUnix(ctx, path)
	if err == nil {
		_ = c.Close() // nothing was said on it
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

func printCheckup(w io.Writer, c api.Checkup) error {
	rows := [][]string{{"CHECK", "ABOUT", "", "FOUND"}}
	for _, r := range c.Checks {
		text := r.Text
		if r.Mend != "" {
			text += " (" + r.Mend + ")"
		}
		rows = append(rows, []string{r.Check, dash(r.About), strings.ToUpper(string(r.Level)), text})
	}
	return table(w, rows)
}
