// Package demoactors shows a small bank of actors on a cluster of three nodes, each with an instance of the
// application. Clients transfer money while pairs of a node and its application are killed with SIGKILL. At the end the
// demo prints the books, and fails if they do not balance.
//
// # Why no money is lost or booked twice
//
// An account is an actor, and so is each transfer. The id of the transfer actor is the id of the transfer, and its
// client chooses it. The turn book of a transfer
//
//  1. sets the reminder finish, and then saves the order. From here on the transfer will be finished, whatever happens
//     to the client, to the node or to the application;
//  2. posts the withdrawal at the one account, and if that has enough money, the deposit at the other;
//  3. saves the outcome, removes the reminder and answers.
//
// If the process dies in between, or a call fails, the client may repeat the call, and the reminder comes in any case.
// Both continue with the order that was saved, so steps 2 and 3 may happen again. This does no harm: an account saves
// the id of a transfer and its new balance in one transaction. If it has the id already, it returns the first outcome.
// Turns of one account do not overlap, so no other turn can come between its read and its transaction. If the account
// has moved to another node meanwhile, the epoch in the transaction is stale, and the log refuses it.
//
// A transfer calls accounts, and an account calls no other actor, so no two turns wait for each other.
//
// # What the demo checks
//
// Each transfer that was acknowledged has that outcome. The balance of each account is the opening balance and
// all transfers that are done. Each turn locks a file of its actor; the kernel unlocks it when the process dies. A turn
// that finds the file locked overlaps with another one.
//
// The package owns the processes of the applications and the directory of the demo. It uses only the binary and the
// HTTP API. Each process has the goroutines of internal/child.
package demoactors

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/quorate/quorate/internal/lab/demonode"
)

// AppWord is the subcommand that runs the application.
const AppWord = "bank"

// Command declares the flags and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: demonode.NewLines(os.Stdout)}
	f.StringVar(&d.binary, "binary", "bin/quorate", "the quorate program")
	f.DurationVar(&d.duration, "duration", 15*time.Second, "how long pairs are killed, each of the three at least once")
	f.BoolVar(&d.stay, "stay", false, "keep the nodes running until Ctrl-C")
	return func(ctx context.Context) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		d.app = []string{self, AppWord}
		return d.run(ctx)
	}
}

// App returns the function that runs the application until its context ends. It declares no flags.
func App(*flag.FlagSet) func(context.Context) error { return serve }
