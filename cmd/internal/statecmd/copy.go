package statecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// copyFlags are the flags of state copy, without those of the store to read.
type copyFlags struct {
	api                    command.APIFlags
	prefix                 string
	dry, verify, overwrite bool
	remove                 bool // delete the keys that only the other store has
	batch, workers         int
	rate                   int
	patience, interval     time.Duration
	skipped                string
}

// mostWorkers limits --concurrency, and with it the idle connections that are kept.
const mostWorkers = 64

// batchBytes limits the size of the values of one write, in bytes. A single value may be larger.
const batchBytes = 512 << 10

// copyRules explains what a copy does, for the help of the command.
const copyRules = "Values are copied byte for byte and keep their type and the instant at which they expire. ETags\n" +
	"are new: each store makes its own. The state of the application's actors is copied too, unless\n" +
	"--prefix is given. Stop the application before the state of its actors is written in the store\n" +
	"that its node uses for them.\n\n" +
	"A key that the other store already has with the same value is left as it is, so a second run\n" +
	"continues where the first one ended. A key that it has with another value is kept and reported,\n" +
	"unless --overwrite is given. --verify writes nothing: it compares both stores, and also reports\n" +
	"keys that only the other store has. The exit code is 0 if nothing is missing or different.\n\n"

func (m *commands) stateCopyCommand() *cobra.Command {
	f, out, to, app := copyFlags{api: command.APIFlags{Shell: m.Shell}}, command.Output{}, "", ""
	from := sourceFlags{}
	c := &cobra.Command{
		Use:   "copy [flags]",
		Short: "Copy the application's state from one store to another, or compare two stores",
		Long: "Copy the state of the application that the API serves from one of its stores to another one,\n" +
			"through the node that has both. With --resources-path the command itself opens the store of\n" +
			"--from, such as the Redis of an application that still runs beside Dapr. It only reads from\n" +
			"that store. Component files of Dapr can be used as they are.\n\n" + copyRules +
			"To move while the application runs: copy, stop the application's writes, copy again with\n" +
			"--overwrite --delete, compare with --verify, and let the application use the other store.",
		Example: "  quorate state copy --from redisstore --to statestore --dry-run\n" +
			"  quorate state copy --from redisstore --to statestore --rate 500\n" +
			"  quorate state copy --from redisstore --to statestore --verify\n" +
			"  quorate state copy --from statestore --resources-path components/redis.yaml --to statestore",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case from.store == "" || to == "":
			return command.Usagef("--from and --to are required (give the names of two stores)")
		case from.store == to && len(from.paths) == 0:
			return command.Usagef("--from and --to name the same store")
		}
		if err := from.check(); err != nil {
			return err
		}
		return f.with(c, func(ctx context.Context, client *stateClient) (err error) {
			id, err := readyFor(ctx, client, to)
			if err != nil {
				return err
			}
			if app != "" && app != id {
				return command.Usagef("the API at %s serves the application %s, not %s (give the address of the other "+
					"one with --address)", client.Base, id, app)
			}
			cp := statecopy.Copy{App: id, FromName: from.name(), ToName: to, To: copyStore{client, to}}
			if len(from.paths) == 0 {
				if _, err := readyFor(ctx, client, from.store); err != nil {
					return err
				}
				cp.From = copyStore{client, from.store}
				return m.copyState(ctx, f, cp, nil, out.JSON())
			}
			opened, done, err := from.open(ctx, m, id)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			cp.From = timed{opened, sync.OnceValue(func() error { return client.checkClock(ctx, time.Now) })}
			return m.copyState(ctx, f, cp, opened.Others, out.JSON())
		})
	}
	f.bind(c)
	out.Bind(c)
	from.bind(c)
	c.Flags().StringVar(&to, "to", "", "`store` to write; required")
	c.Flags().StringVar(&app, "app", "", "refuse unless the API serves the application with this `id`")
	return c
}

func (f *copyFlags) bind(c *cobra.Command) {
	f.api.Bind(c)
	fl := c.Flags()
	fl.StringVar(&f.prefix, "prefix", "", "only keys that start with `prefix`, and no actor state")
	fl.BoolVar(&f.dry, "dry-run", false, "write nothing, only report what would be copied")
	fl.BoolVar(&f.verify, "verify", false, "write nothing, compare both stores")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace values that differ")
	fl.BoolVar(&f.remove, "delete", false, "delete keys that only the other store has, once all others are copied")
	fl.IntVar(&f.batch, "batch", 100, "`keys` per read and write")
	fl.IntVar(&f.workers, "concurrency", 4, "number of concurrent `batches`")
	fl.IntVar(&f.rate, "rate", 0, "most `keys` per second; 0 = as fast as the stores are")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long to retry what a store cannot do")
	fl.DurationVar(&f.interval, "progress", 5*time.Second, "time between progress lines; 0 = none")
	fl.StringVar(&f.skipped, "skipped-file", "",
		"`file` that lists every key that is not copied, with the reason, as JSON lines")
}

// with checks the flags and calls the given function with a client of the API. A signal ends the context of the call.
func (f *copyFlags) with(c *cobra.Command, use func(context.Context, *stateClient) error) error {
	switch {
	case f.verify && (f.dry || f.overwrite || f.remove):
		return command.Usagef("--verify excludes --dry-run, --overwrite and --delete (it writes nothing)")
	case f.batch < 1 || f.batch > 1000:
		return command.Usagef("--batch %d is refused (give 1 to 1000 keys)", f.batch)
	case f.workers < 1 || f.workers > mostWorkers:
		return command.Usagef("--concurrency %d is refused (give 1 to %d)", f.workers, mostWorkers)
	case f.rate < 0 || f.patience < 0 || f.interval < 0:
		return command.Usagef("--rate, --patience and --progress must not be negative")
	}
	return with(&f.api, c, func(client *stateClient) error {
		ctx, release := f.api.Shell.Interruptible(c.Context())
		defer release()
		return use(ctx, client)
	})
}

// copyState runs a copy and prints its report. It returns an error if the copy fails, or if the stores differ
// afterwards. The function others counts the keys of the source that belong to other owners. It may be nil.
func (m *commands) copyState(ctx context.Context, f copyFlags, c statecopy.Copy, others func() map[string]int64,
	asJSON bool) (err error) {
	c.Prefix, c.DryRun, c.Verify, c.Overwrite, c.Delete = f.prefix, f.dry, f.verify, f.overwrite, f.remove
	c.Batch, c.Bytes, c.Workers, c.Rate, c.Pause = f.batch, batchBytes, f.workers, f.rate, patience(f.patience)
	if f.interval > 0 {
		c.Progress = func(now func() statecopy.Report) func() { return m.copyProgress(f.interval, now) }
	}
	if f.skipped != "" {
		file, err := os.OpenFile(f.skipped, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return copyFileError(f.skipped, err)
		}
		w := bufio.NewWriter(file)
		c.Skipped = w
		defer func() {
			if closing := errors.Join(w.Flush(), file.Close()); closing != nil {
				err = errors.Join(err, copyFileError(f.skipped, closing))
			}
		}()
	}
	report, failure := c.Run(ctx)
	if others != nil {
		report.Others = others()
	}
	if asJSON {
		err = command.WriteJSON(m.Stdout, report)
	} else {
		err = m.printCopy(&report)
	}
	switch {
	case failure != nil:
		return errors.Join(command.Because(ctx, failure), err)
	case report.Problems() > 0:
		return &fault.Error{Code: fault.Internal, Op: "cli.copy",
			Msg: "the stores differ in " + command.Count(int(report.Problems()), "key"),
			Hint: "see the examples, --skipped-file lists all; --overwrite replaces values that differ, --delete " +
				"removes keys that only " + c.ToName + " has"}
	}
	return err
}

// readyFor returns the app id of the node that client calls. It returns an error if the node is not ready or does not
// have the store.
func readyFor(ctx context.Context, client *stateClient, store string) (app string, err error) {
	if _, err := client.Do(ctx, http.MethodGet, "/v1.0/healthz/outbound", nil, nil, nil); err != nil {
		return "", fault.Wrap(err, "cli.copy", "the node at "+client.Base+" is not ready")
	}
	app, stores, err := client.About(ctx)
	if err != nil {
		return "", err
	}
	if !slices.Contains(stores, store) {
		return "", command.Usagef("the node has no state store %s (it has: %s)", store,
			command.Dash(strings.Join(stores, ", ")))
	}
	return app, nil
}

func copyFileError(path string, err error) error {
	return &fault.Error{Code: fault.Invalid, Op: "cli.copy", Key: path, Msg: "the file " + path + " cannot be used",
		Err: command.RootPath(err)}
}

// Pauses between attempts of a request.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 4 * time.Second
)

// patience returns a function for Copy.Pause. The function waits before a request is repeated, each time twice as long,
// up to longestPause. It returns false if ctx ends. It also returns false, without waiting, if the wait would end later
// than limit after the start of the first attempt.
func patience(limit time.Duration) func(context.Context, int, time.Duration) bool {
	return func(ctx context.Context, attempt int, since time.Duration) bool {
		pause := min(firstPause<<min(attempt-1, 10), longestPause)
		return since+pause <= limit && rest.Pause(ctx, pause)
	}
}

// copyProgress prints a line at each interval until stop is called.
func (m *commands) copyProgress(interval time.Duration, now func() statecopy.Report) (stop func()) {
	done, ended, begun := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for before := int64(0); ; {
			select {
			case <-tick.C:
				r := now()
				fmt.Fprintf(m.Stderr, "%s: %d keys seen, %d copied, %d the same, %d problems, %.0f keys/s\n",
					time.Since(begun).Round(time.Second), r.Seen, r.Copied, r.Same, r.Problems(),
					float64(r.Seen-before)/interval.Seconds())
				before = r.Seen
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
