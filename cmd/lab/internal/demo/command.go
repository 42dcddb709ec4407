// Package demo shows a cluster of three nodes in about a minute. State is written at one node and read at another, and
// one application calls another. While customers order, the leader and its application are killed with kill -9. At the
// end the demo compares the books: no acknowledged order is lost, and none is carried out twice.
//
// # Why no order is lost or carried out twice
//
// A customer chooses the id of an order, and sends the order again with the same id until it is acknowledged. The
// application orders calls the application stock, and then saves the receipt that stock returns. In one atomic write,
// stock lowers the count of the item and saves the receipt under the id of the order. This write fails if the count has
// changed since stock read it, or if a receipt with this id exists. So a repeated order changes nothing, and concurrent
// orders do not overwrite each other.
//
// The package owns the directory of the demo and decides the sequence of its steps. Each application uses only the API
// of its own node. Package launcher owns the processes.
package demo

import (
	"context"
	"errors"
	"flag"
	"os"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// AppWord is the subcommand that runs one of the two applications. Its argument is the name of the application.
const AppWord = "app"

// Command declares the flags of the subcommand, and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: launcher.NewLines(os.Stdout)}
	f.StringVar(&d.binary, "binary", "bin/quorate", "the quorate program")
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

// App returns the function that runs one of the two applications until its context ends. It declares no flags. The
// only argument is the name of the application.
func App(f *flag.FlagSet) func(context.Context) error {
	return func(ctx context.Context) error {
		switch f.Arg(0) {
		case orders:
			return serve(ctx, sidecar.serveOrders)
		case stock:
			return serve(ctx, sidecar.serveStock)
		}
		return errors.New("give the application: orders or stock")
	}
}
