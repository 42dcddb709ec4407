// Package demoworkflow shows a shop whose orders are workflows, on a cluster of three nodes, each with a worker. While
// customers order, workers and the leader are killed with SIGKILL. At the end the demo prints the books, and fails if
// they do not balance.
//
// # Why no order is carried out in part, and no step twice
//
// An order is an instance of a workflow. It reserves goods, charges the customer and ships. If a step is refused,
// the workflow undoes the earlier steps. The history of the instance has each result of an activity, and the nodes
// replicate the history. So another worker continues where a killed worker has stopped.
//
// An activity may run twice: its worker may die after the activity has changed something, and before the node has its
// result. So an activity saves a note with the id of the order and its change in one transaction. If the note exists,
// the activity changes nothing.
//
// # What the demo checks
//
// Each activity has an id for each of its runs, and returns it. The outcome of an order lists the runs that have
// counted. Each order has exactly the steps of its outcome, each with one run, and the notes in the store have the
// same runs. Stock and credit agree with the orders.
//
// The package owns the processes of the workers and the directory of the demo. It uses only the binary, the HTTP
// API and Dapr's SDK for workflows. Each process has the goroutines of internal/child. A worker has the goroutines
// of the SDK.
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
