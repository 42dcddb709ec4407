// Package demoactors shows a small bank of actors on a cluster of three nodes, each with an instance of the
// application. Clients transfer money while pairs of a node and its application are killed with SIGKILL. At the end the
// demo prints the books, and fails if they do not balance.
//
// # Why no money is lost or booked twice
//
// An account is an actor, and so is each transfer. The client chooses the id of a transfer, which is also the id of the
// actor. To make the transfer, the client calls the method book of this actor. The method takes three steps:
//
//  1. It sets the reminder finish, and then saves the order. From here on the transfer will be finished, even if the
//     client, the node or the application dies.
//  2. It posts the withdrawal at one account. If that account has enough money, it then posts the deposit at the
//     other account.
//  3. It saves the outcome, removes the reminder and answers.
//
// If the process dies between two steps, or if a call fails, the client may repeat the call. The reminder fires even if
// the client does not. The repeated call and the reminder continue with the saved order, so steps 2 and 3 may happen
// again.
//
// This does no harm, because an account saves its new balance and the id of the transfer in one transaction. If an
// account already has the id of a transfer, it returns the first outcome. Turns of one account do not overlap, so no
// other turn can change the balance between the read and the transaction of a turn. If the account has meanwhile moved
// to another node, the epoch in the transaction is stale, and the store refuses the transaction.
//
// A transfer calls accounts, and an account calls no other actor, so no two turns wait for each other.
//
// # What the demo checks
//
// Each acknowledged transfer has the acknowledged outcome. The balance of each account is the opening balance plus or
// minus its completed transfers. No turns of an actor overlap: each turn locks a file of its actor, and fails if the
// file is already locked. If the process dies, the kernel unlocks the file.
//
// The package owns the processes of the applications and the directory of the demo. It uses only the binary and the
// HTTP API. Package internal/child starts a goroutine for each process.
package demoactors

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// AppWord is the subcommand that runs the application.
const AppWord = "bank"

// Command declares the flags of the subcommand, and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: launcher.NewLines(os.Stdout)}
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
