// Command demoapps shows two applications in two languages on a cluster of three nodes:
// orders, in Go, and stock, in Python with two instances. They call each other by app id
// and nothing else, and keep what they know in the store of the cluster. It places orders,
// kills a node with an instance of stock, places more, and counts whether anything is lost.
// Then it ends; with -stay it waits for Ctrl-C.
//
// It owns the processes it started and their directory. It must never use anything of a
// node but its binary and its HTTP API, and its applications nothing but the API of the
// node beside them. Each process has the goroutines of cmd/internal/child.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "app" { // as an application, beside a node
		serve(os.Args[2])
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	d := demo{out: &lines{w: os.Stdout}}
	flag.StringVar(&d.binary, "binary", "bin/quorate", "the quorate program")
	flag.StringVar(&d.script, "stock", "deploy/examples/stock.py", "the application stock")
	flag.StringVar(&d.python, "python", "python3", "what runs it; where there is none, stock is a Go program, too")
	flag.IntVar(&d.orders, "orders", 30, "how many orders are placed before and after the kill")
	flag.BoolVar(&d.stay, "stay", false, "go on until Ctrl-C")
	flag.Parse()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demoapps: "+err.Error())
		stop()
		os.Exit(1)
	}
}
