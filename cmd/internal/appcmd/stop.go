package appcmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
)

// stopPause is the time between two checks whether the processes have ended.
const stopPause = 50 * time.Millisecond

func (m *commands) stopCommand() *cobra.Command {
	set, dapr, app, file, patience := settings.New(), daprFlags{}, "", "", time.Minute
	c := &cobra.Command{
		Use:   "stop [app...] [flags]",
		Short: "Stop applications that quorate run has started on this machine, and their nodes",
		Long: "Stop applications that quorate run has started on this machine, and their nodes. It sends SIGTERM,\n" +
			"as Ctrl-C sends SIGINT, and waits until the processes have ended.",
		Example: "  quorate stop orders\n  quorate stop -f apps.yaml",
		Args:    cobra.ArbitraryArgs,
	}
	c.Flags().StringVarP(&app, "app-id", "a", "", "`id` of an application to stop")
	c.Flags().StringVarP(&file, "run-file", "f", "", "stop the applications of the run `file` of quorate run -f")
	c.Flags().DurationVar(&patience, "wait", patience, "how long to wait for the end")
	set.BindOnly(c.Flags(), "config-file")
	dapr.bind(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := dapr.check("on Kubernetes, delete or scale the workload with kubectl"); err != nil {
			return err
		}
		if app != "" {
			args = append(args, app)
		}
		if (len(args) == 0) == (file == "") {
			return command.Usagef("name applications or a run file (usage: %s)", c.UseLine())
		}
		notes, err := m.runs(c, set)
		if err != nil {
			return err
		}
		chosen, err := choose(notes, args, file)
		if err != nil {
			return err
		}
		again := func() ([]hostshare.Note, error) { return m.runs(c, set) }
		if err := stop(c.Context(), chosen, again, patience); err != nil {
			return err
		}
		var names []string
		for _, n := range chosen {
			names = append(names, fmt.Sprintf("%s (process %d)", command.Printable(name(n)), n.PID))
		}
		_, err = fmt.Fprintf(m.Stdout, "Stopped %s.\n", strings.Join(names, ", "))
		return err
	}
	return c
}

// choose returns the records of the named applications. If file is not empty, choose adds the record of each process
// that runs this run file.
func choose(notes []hostshare.Note, apps []string, file string) ([]hostshare.Note, error) {
	var out []hostshare.Note
	for _, app := range apps {
		found, err := find(notes, app)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	if file != "" {
		path, err := filepath.Abs(file)
		if err != nil {
			return nil, fault.Wrap(err, opRuns, "the run file")
		}
		for _, n := range notes {
			if n.Run.File == path {
				out = append(out, n)
			}
		}
		if len(out) == 0 {
			return nil, &fault.Error{Code: fault.NotFound, Op: opRuns,
				Msg:  "no quorate run -f of this user runs " + path,
				Hint: "quorate list shows what runs"}
		}
	}
	return out, nil
}

// stop sends SIGTERM to the chosen processes, and waits until list no longer returns their records. If this takes
// longer than patience, it returns fault.Timeout.
func stop(ctx context.Context, chosen []hostshare.Note, list func() ([]hostshare.Note, error),
	patience time.Duration) error {
	for _, n := range chosen {
		if err := syscall.Kill(n.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fault.Wrap(err, opRuns, fmt.Sprintf("process %d cannot be stopped", n.PID))
		}
	}
	tick, late := time.NewTicker(stopPause), time.After(patience)
	defer tick.Stop()
	for {
		notes, err := list()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(chosen, func(c hostshare.Note) bool {
			return slices.ContainsFunc(notes, func(n hostshare.Note) bool {
				return n.PID == c.PID && n.Run.Started.Equal(c.Run.Started)
			})
		})
		if i < 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return &fault.Error{Code: fault.Timeout, Op: opRuns, Msg: fmt.Sprintf("%s (process %d) has not ended",
				command.Printable(name(chosen[i])), chosen[i].PID),
				Hint: fmt.Sprintf("wait longer with --wait, or end it with: kill -9 %d", chosen[i].PID)}
		}
	}
}
