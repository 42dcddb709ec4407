package proof

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// Command declares the flags of the subcommand, and returns a function that runs a campaign and writes its report.
// Each node of the campaign is another process of this program. The function needs root on Linux, and mkfs.ext4.
func Command(f *flag.FlagSet, version string) func(context.Context) error {
	o := Options{Version: version}
	out := f.String("out", "", "directory for the report; empty = a new one")
	f.DurationVar(&o.For, "for", 30*time.Minute, "time after which no new fault begins; 0 = use -steps only")
	f.IntVar(&o.Steps, "steps", 0, "number of faults; 0 = use -for only")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of all random choices; 0 = a new one")
	return func(ctx context.Context) error { return prove(ctx, o, *out) }
}

func prove(ctx context.Context, o Options, out string) (err error) {
	if o.For <= 0 && o.Steps <= 0 {
		return errors.New("-for and -steps are both 0: the campaign would never end")
	}
	if o.Program, err = os.Executable(); err != nil {
		return err
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64N(1<<32) //nolint:gosec // chance, not a secret
	}
	if out == "" {
		if out, err = os.MkdirTemp("", "quorate-prove-"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(out, 0o750); err != nil {
		return err
	}
	fmt.Printf("seed %d\n", o.Seed)
	begun := time.Now()
	o.Log = func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	r, err := Run(ctx, o)
	if r == nil {
		return err
	}
	err = errors.Join(err,
		write(filepath.Join(out, "report.html"), r.WriteHTML), write(filepath.Join(out, "totals.json"), r.WriteJSON))
	for name, h := range r.Histories {
		err = errors.Join(err, write(filepath.Join(out, name), func(w io.Writer) error {
			_, err := h.WriteTo(w)
			return err
		}))
	}
	fmt.Print(r.Summary())
	fmt.Printf("report: %s\n", filepath.Join(out, "report.html"))
	if r.Logs != "" {
		fmt.Printf("logs of the nodes: %s\n", r.Logs)
	}
	if len(r.Violations) > 0 {
		err = errors.Join(err, fmt.Errorf("%d guarantees were violated; %s repeats it", len(r.Violations), r.Again))
	}
	return err
}

func write(path string, content func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(content(f), f.Close())
}
