// Package demoworkflow shows a shop whose orders are workflows, on a cluster of three nodes, each with a worker. While
// customers order, workers and the leader are killed with SIGKILL. At the end the demo prints the books, and fails if
// they do not balance.
//
// # Why no order is carried out in part, and no step twice
//
// An order is an instance of a workflow. It reserves goods, charges the customer and ships. If a step is refused, the
// workflow undoes the earlier steps. The history of the instance has the result of each activity, and the nodes
// replicate the history. So if a worker is killed, another worker continues where the killed worker stopped.
//
// An activity may run twice, because its worker may die before the node has the result of the first run. So that the
// second run changes nothing, an activity saves its change and a note in one transaction. The note has the id of the
// order. If the note already exists, the activity changes nothing.
//
// # What the demo checks
//
// Each run of an activity has its own id, which the activity returns. The outcome of an order lists the runs whose
// results the workflow used. The demo checks that each order has exactly the steps of its outcome, and one run for each
// step. The notes in the store must have the same runs. Stock and credit must agree with the orders.
//
// The package owns the processes of the workers and the directory of the demo. It uses only the binary, the HTTP API
// and Dapr's SDK for workflows. Package internal/child starts a goroutine for each process. In a worker, the SDK starts
// goroutines.
package demoworkflow

import (
	"context"
	"flag"
	"os"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// WorkerWord is the subcommand that runs a worker.
const WorkerWord = "saga"

// Command declares the flags of the subcommand, and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: launcher.NewLines(os.Stdout)}
	f.StringVar(&d.binary, "binary", "bin/quorate", "the quorate program")
	f.IntVar(&d.rounds, "rounds", 1, "how often a worker, the leader, and both together are killed")
	f.BoolVar(&d.stay, "stay", false, "keep the nodes running until Ctrl-C")
	return func(ctx context.Context) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		d.worker = []string{self, WorkerWord}
		return d.run(ctx)
	}
}

// Worker returns the function that runs a worker until its context ends. It declares no flags.
func Worker(*flag.FlagSet) func(context.Context) error { return work }
