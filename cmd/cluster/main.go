// Command cluster shows three Quorate nodes in one terminal: it starts them on 127.0.0.1
// with data directories of their own, lets them form a cluster, says where they serve and
// what to try, passes their logs on, and ends them when it is asked to end.
//
// It owns the processes it started and, unless -dir names one, their directory. It must
// never use anything of a node but its binary and its HTTP API. Each process has one
// goroutine that reads its log until it is gone.
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	c := cluster{out: &lines{w: os.Stdout}}
	flag.StringVar(&c.binary, "binary", "", "the quorate program; empty builds it")
	flag.StringVar(&c.dir, "dir", "", "directory to keep the data in; empty uses one that is removed at the end")
	flag.IntVar(&c.httpPort, "http-port", 3500, "API port of the first node, the others take the next ones; a taken one is replaced, and 0 picks free ones")
	flag.StringVar(&c.logLevel, "log-level", "info", "log level of the nodes")
	flag.Parse()
	if err := c.run(ctx, nil); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: "+err.Error())
		os.Exit(1)
	}
}
