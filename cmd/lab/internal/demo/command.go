// Package demo shows a cluster of three nodes in about a minute: state that is written at one node and read at another,
// calls between two applications, and the kill -9 of the leader together with its application while customers order.
// At the end it compares the books: no acknowledged order is lost, and none is carried out twice.
//
// # Why no order is lost or carried out twice
//
// A customer chooses the id of an order, and sends it again with the same id until it is acknowledged. The application
// orders keeps the order and calls the application stock. Stock lowers the count of the item and notes the id of the
// order, in one atomic write. The write fails if the count has another ETag than the one that was read, or if the id
// is already noted. So a repeated order changes nothing, and concurrent orders do not overwrite each other.
//
// The package owns the directory of the demo and the order of its steps. The applications use only the API of the
// node beside them. Package launcher owns the processes.
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
