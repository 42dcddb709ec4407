// Package cluster runs three Quorate nodes in one terminal. It starts them on 127.0.0.1, each with its own data
// directory, and waits until they have formed a cluster. It prints the addresses and the logs of the nodes, and
// commands to try. An interrupt stops the nodes.
//
// The package owns its output and, unless -dir is given, the directory of the nodes. Package launcher owns the
// processes. One goroutine for each process waits for the end of the process.
package cluster

import (
	"context"
	"flag"
	"os"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// Command declares the flags of the subcommand and returns a function that runs the cluster until its context ends.
func Command(f *flag.FlagSet) func(context.Context) error {
	c := cluster{out: launcher.NewLines(os.Stdout)}
	f.StringVar(&c.binary, "binary", "bin/quorate", "the quorate program")
	f.StringVar(&c.dir, "dir", "", "directory for the data, which is kept; empty = a temporary one")
	f.IntVar(&c.httpPort, "http-port", 3500,
		"API port of the first node, the others use the next ones; a port in use is replaced, and 0 picks free ones")
	f.StringVar(&c.logLevel, "log-level", "info", "log level of the nodes")
	return func(ctx context.Context) error { return c.run(ctx, nil) }
}
