// Command prove plays a campaign of faults against a cluster of real processes, checks every
// promise, and writes a report.
//
// It owns its flags and the files of the report; package proof has the campaign. The nodes
// are processes of this same program, which is the quorate command with small bounds and a
// clock that can be turned (package tuned). Needs root on Linux and mkfs.ext4.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/quorate/quorate/cmd/internal/proof"
	"github.com/quorate/quorate/cmd/internal/tuned"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "devel"

func main() {
	if text, ok := os.LookupEnv(tuned.Env); ok {
		os.Exit(tuned.Run(text))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prove: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := proof.Options{Program: self, Version: version}
	out := flag.String("out", "", "directory for the report; empty = a new one")
	flag.DurationVar(&o.For, "for", 30*time.Minute, "no new fault begins after so long; 0 = -steps alone count")
	flag.IntVar(&o.Steps, "steps", 0, "no new fault begins after so many; 0 = -for alone counts")
	flag.Uint64Var(&o.Seed, "seed", 0, "where all chance comes from; 0 = a new one")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("no arguments are taken, and %q is one", flag.Arg(0))
	}
	if o.For <= 0 && o.Steps <= 0 {
		return errors.New("-for and -steps are both 0: the campaign would never end")
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64N(1<<32) //nolint:gosec // chance, not a secret
	}
	if *out == "" {
		if *out, err = os.MkdirTemp("", "quorate-prove-"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(*out, 0o750); err != nil {
		return err
	}
	fmt.Printf("seed %d\n", o.Seed)
	begun := time.Now()
	o.Log = func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	r, err := proof.Run(ctx, o)
	if r == nil {
		return err
	}
	err = errors.Join(err,
		write(filepath.Join(*out, "report.html"), r.WriteHTML), write(filepath.Join(*out, "totals.json"), r.WriteJSON))
	fmt.Print(r.Summary())
	fmt.Printf("report: %s\n", filepath.Join(*out, "report.html"))
	if r.Logs != "" {
		fmt.Printf("logs of the nodes: %s\n", r.Logs)
	}
	if len(r.Violations) > 0 {
		err = errors.Join(err, fmt.Errorf("%d promises were broken; %s plays it again", len(r.Violations), r.Again))
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
