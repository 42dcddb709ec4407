// Package demoapps shows two applications in two languages on a cluster of three nodes: orders, in Go, and stock, in
// Python with two instances. They call each other by app id and keep their state in the store of the cluster. The
// demo places orders, kills a node with an instance of stock, places more orders, and checks that no order is lost.
// With -stay it then waits for Ctrl-C.
//
// It owns the processes that it has started and their directory. It uses only the binary and the HTTP API of a node.
// Its applications use only the API of the node beside them. Each process has the goroutines of internal/child.
package demoapps

import (
	"context"
	"errors"
	"flag"
	"os"

	"github.com/quorate/quorate/cmd/lab/internal/demonode"
)

// AppWord is the subcommand that runs one of the applications: AppWord orders|stock.
const AppWord = "app"

// Command declares the flags and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: demonode.NewLines(os.Stdout)}
	f.StringVar(&d.binary, "binary", "bin/quorate", "the quorate program")
	f.StringVar(&d.script, "stock", "deploy/examples/stock.py", "the application stock")
	f.StringVar(&d.python, "python", "python3", "Python interpreter; if it is missing, stock is a Go program, too")
	f.IntVar(&d.orders, "orders", 30, "number of orders before and after the kill")
	f.BoolVar(&d.stay, "stay", false, "keep the nodes running until Ctrl-C")
	return d.run
}

// App returns the function that runs one of the two applications until its context ends. It declares no flags. The
// only argument is the name of the application.
func App(f *flag.FlagSet) func(context.Context) error {
	return func(ctx context.Context) error {
		if name := f.Arg(0); name == "orders" || name == "stock" {
			return serve(ctx, name)
		}
		return errors.New("give the application: orders or stock")
	}
}
