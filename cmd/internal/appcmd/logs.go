package appcmd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/userfile"
)

// followPause is the time between two reads of output that is followed.
const followPause = 200 * time.Millisecond

func (m *commands) logsCommand() *cobra.Command {
	set, dapr, app, follow, tail := settings.New(), daprFlags{}, "", false, -1
	c := &cobra.Command{
		Use:   "logs [app] [flags]",
		Short: "Print the output of an application that quorate run has started",
		Long: "Print the last output of an application that quorate run has started on this machine, also after it\n" +
			"has ended. If it runs several times, this is the output of the newest run. At least the last 8 MiB\n" +
			"are kept. The log of the node is what quorate run prints itself.",
		Example: "  quorate logs orders\n  quorate logs orders --tail 20 --follow",
		Args:    cobra.MaximumNArgs(1),
	}
	c.Flags().StringVarP(&app, "app-id", "a", "", "`id` of the application, instead of the argument")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new output until the application ends")
	c.Flags().IntVar(&tail, "tail", tail, "print only the last `lines`; -1 = all")
	set.BindOnly(c.Flags(), "config-file")
	dapr.bind(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := dapr.check("on Kubernetes, use: kubectl logs POD -c CONTAINER"); err != nil {
			return err
		}
		if len(args) > 0 {
			app = args[0]
		}
		if app == "" {
			return command.Usagef("name an application (usage: %s)", c.UseLine())
		}
		path, running, err := m.output(c, set, app)
		if err != nil {
			return err
		}
		f, _, err := userfile.Open(path)
		if err != nil {
			return fault.Wrap(err, opRuns, "the output of the application cannot be read")
		}
		err = printOutput(m.Stdout, f, tail)
		if err == nil && follow {
			return followOutput(c.Context(), m.Stdout, f, running)
		}
		return errors.Join(err, f.Close())
	}
	return c
}

// output returns the path of the output of the newest run of an application, and a function that reports whether the
// application still runs.
func (m *commands) output(c *cobra.Command, set *settings.Set, app string) (string, func() bool, error) {
	config, err := m.Resolve(set, c.Flags(), nil)
	if err != nil {
		return "", nil, err
	}
	notes, err := list(config.Data.RuntimeDir)
	if err != nil {
		return "", nil, err
	}
	found, missing := find(notes, app)
	path := newestLog(found)
	if missing != nil && config.Data.StateDir != "" {
		for _, ended := range outputs(filepath.Dir(logPath(config.Data.StateDir, app, 0)), app) {
			path, missing = ended, nil
		}
	}
	switch {
	case missing != nil:
		return "", nil, missing
	case path == "":
		return "", nil, &fault.Error{Code: fault.NotFound, Op: opRuns, Msg: "the output of " + command.Printable(app) +
			" is not kept, because quorate run has not started the application",
			Hint: "start it with: quorate run --app-id " + command.Printable(app) + " -- COMMAND"}
	}
	return path, func() bool { return runs(config.Data.RuntimeDir, path) }, nil
}

// newestLog returns the path of the output of the newest run whose output is kept. It returns "" if there is no such
// run.
func newestLog(notes []hostshare.Note) string {
	path, started := "", time.Time{}
	for _, n := range notes {
		if n.Run.Log != "" && !n.Run.Started.Before(started) {
			path, started = n.Run.Log, n.Run.Started
		}
	}
	return path
}

// runs reports whether a running process writes the output of its application to path.
func runs(runtimeDir, path string) bool {
	notes, err := list(runtimeDir)
	return err == nil && writes(notes, path)
}

// writes reports whether one of the records has path as the output file of its application.
func writes(notes []hostshare.Note, path string) bool {
	return slices.ContainsFunc(notes, func(n hostshare.Note) bool { return n.Run.Log == path })
}

// printOutput prints the kept output of an application: first the file with the older part, if there is one, and then
// f. If tail is not negative, printOutput prints only the last tail lines.
func printOutput(w io.Writer, f *os.File, tail int) error {
	parts := []io.Reader{f}
	old, info, err := userfile.Open(f.Name() + oldSuffix)
	switch {
	case err == nil:
		defer func() { _ = old.Close() }()
		if mine, err := f.Stat(); err != nil || !os.SameFile(mine, info) { // otherwise f was renamed just now
			parts = []io.Reader{old, f}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(err, opRuns, "the output of the application cannot be read")
	}
	if tail < 0 {
		_, err := io.Copy(w, io.MultiReader(parts...))
		return err
	}
	var last [][]byte
	in := bufio.NewReader(io.MultiReader(parts...))
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			if last = append(last, line); len(last) > tail {
				last = last[1:]
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fault.Wrap(err, opRuns, "the output of the application cannot be read")
		}
	}
	for _, line := range last {
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return nil
}

// followOutput prints text that is appended to f. When f is replaced by a new file, followOutput continues with the new
// file. It returns when ctx ends, or when running reports that the writing process has ended. It closes f.
func followOutput(ctx context.Context, w io.Writer, f *os.File, running func() bool) error {
	path := f.Name()
	defer func() { _ = f.Close() }()
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for {
		live := running() // before the read, so that the last output is read, too
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		next := reopened(f, path)
		if next != f {
			_, err := io.Copy(w, f) // what was appended before the replacement
			_ = f.Close()
			f = next
			if err != nil {
				return err
			}
			continue // the replacement may have output already, even the last output
		}
		if !live {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reopened opens the file that has replaced f at path. If f was not replaced, or if the new file cannot be opened, it
// returns f.
func reopened(f *os.File, path string) *os.File {
	was, err := f.Stat()
	if err != nil {
		return f
	}
	now, err := os.Stat(path)
	if err != nil || os.SameFile(was, now) {
		return f
	}
	next, _, err := userfile.Open(path)
	if err != nil {
		return f
	}
	return next
}
