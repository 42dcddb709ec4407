// Command lab has demos of Quorate, a cluster in one terminal, and a campaign of fault tests. If the environment has
// settings for fault tests, lab runs as the quorate command with these settings.
//
// It owns only the table of its subcommands. The packages below cmd/lab/internal do the work.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/quorate/quorate/cmd/lab/internal/benchcheck"
	"github.com/quorate/quorate/cmd/lab/internal/cluster"
	"github.com/quorate/quorate/cmd/lab/internal/demo"
	"github.com/quorate/quorate/cmd/lab/internal/demoactors"
	"github.com/quorate/quorate/cmd/lab/internal/demoworkflow"
	"github.com/quorate/quorate/cmd/lab/internal/eventgrid"
	"github.com/quorate/quorate/cmd/lab/internal/proof"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
	"github.com/quorate/quorate/cmd/lab/internal/turnclock"
)

// version is set by the linker: -X main.version=1.2.3.
var version = "devel"

// subcommand is one command of the program. The function make declares the flags of the command, and returns a function
// that runs the command until the command has finished or ctx ends.
type subcommand struct {
	name, about string
	args        int // number of arguments
	make        func(*flag.FlagSet) func(ctx context.Context) error
}

func subcommands() []subcommand {
	prove := func(f *flag.FlagSet) func(context.Context) error { return proof.Command(f, version) }
	return []subcommand{
		{"cluster", "start three nodes on 127.0.0.1 and print what to try", 0, cluster.Command},
		{"demo", "run two applications on three nodes, kill the leader, and check the books", 0, demo.Command},
		{"demo-actors", "run a bank of actors on three nodes, kill them and print the books", 0, demoactors.Command},
		{"demo-workflow", "run a shop of workflows on three nodes, kill workers and the leader, and check the books", 0,
			demoworkflow.Command},
		{"prove", "run a campaign of faults and write a report (root on Linux)", 0, prove},
		{"bench-check", "compare the ratios of benchmarks on standard input with a baseline", 0, benchcheck.Command},
		{"turn-clock", "write an overlay for a build whose wall clock can be set: turn-clock DIR", 1,
			turnclock.Command},
		{"event-grid", "serve Azure Event Grid on loopback", 0, eventgrid.Command},
		{demo.AppWord, "run one application of demo: app orders|stock", 1, demo.App},
		{demoactors.AppWord, "run the application of demo-actors", 0, demoactors.App},
		{demoworkflow.WorkerWord, "run a worker of demo-workflow", 0, demoworkflow.Worker},
	}
}

func main() {
	if text, ok := os.LookupEnv(tuned.Env); ok {
		os.Exit(quorate(text))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// run finds the subcommand, runs it and returns the exit code.
func run(ctx context.Context, args []string, errs io.Writer) int {
	if len(args) > 0 {
		for _, c := range subcommands() {
			if c.name == args[0] {
				return c.run(ctx, args[1:], errs)
			}
		}
		if args[0] != "help" && args[0] != "-h" && args[0] != "--help" {
			fmt.Fprintf(errs, "lab: unknown command %q\n\n", args[0])
		}
	}
	fmt.Fprint(errs, "Usage: lab COMMAND [flags]; lab COMMAND -h lists the flags.\n\n")
	for _, c := range subcommands() {
		fmt.Fprintf(errs, "  %-13s  %s\n", c.name, c.about)
	}
	return 2
}

func (c subcommand) run(ctx context.Context, args []string, errs io.Writer) int {
	f := flag.NewFlagSet("lab "+c.name, flag.ContinueOnError)
	f.SetOutput(errs)
	do := c.make(f)
	if err := f.Parse(args); err != nil {
		return 2 // the flag set has printed the error
	}
	if f.NArg() != c.args {
		fmt.Fprintf(errs, "lab %s: takes %d arguments, not %d: %q\n", c.name, c.args, f.NArg(), f.Args())
		return 2
	}
	if err := do(ctx); err != nil {
		fmt.Fprintf(errs, "lab %s: %v\n", c.name, err)
		return 1
	}
	return 0
}
