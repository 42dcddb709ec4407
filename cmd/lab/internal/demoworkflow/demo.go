package demoworkflow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/listen"
)

const (
	size = 3
	calm = 4 // seconds before each kill
	gone = 5 // seconds between a kill and the next start
)

// demo is one run of the demo.
type demo struct {
	out    *launcher.Lines
	binary string
	worker []string // the command that runs a worker
	rounds int
	stay   bool

	cluster *launcher.Cluster
	workers []*launcher.Process // beside the nodes
	runs    string              // path of the file with a line for each execution of an activity
	books   books
	seconds int // of orders that were printed
}

func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "quorate-workflow-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.cluster, err = launcher.New(ctx, launcher.Plan{Program: d.binary, Dir: dir, Size: size, FirstPort: 3500,
		Flags: []string{"--log-level", "error", "--app-id", "shop", "--console", "--console-port", "0"}}); err != nil {
		return err
	}
	d.runs = filepath.Join(dir, "runs")
	d.books = books{orders: map[string]order{}, ended: map[string]outcome{}}
	defer func() { err = errors.Join(err, launcher.StopAll(d.workers...), d.cluster.Stop()) }()
	for _, step := range []func(context.Context) error{d.start, d.one, d.crashes, d.audit} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.stay {
		n := d.cluster.Nodes[0]
		d.out.Say("The nodes run until Ctrl-C. Orders, in a terminal and in the browser (page Workflows):\n\n"+
			"  %s workflows list --data-dir %s\n  %s console --data-dir %s", d.binary, n.DataDir, d.binary, n.DataDir)
		<-ctx.Done()
	}
	return nil
}

// start starts the nodes, each with a worker beside it, and waits for the cluster.
func (d *demo) start(ctx context.Context) error {
	ports, err := listen.Spare(ctx, size)
	if err != nil {
		return err
	}
	d.out.Say("Three nodes start on this machine, each with a worker of the shop beside it:\n")
	for i, n := range d.cluster.Nodes {
		n.Flags = append(n.Flags, "--grpc-port", fmt.Sprint(ports[i]))
		n.Options.Prefix, n.Options.Stderr = "  "+n.ID+" | ", d.out
		w := &launcher.Process{Options: child.Options{Command: d.worker, Env: append(os.Environ(),
			fmt.Sprintf("DAPR_HTTP_PORT=%d", n.HTTPPort), fmt.Sprintf("DAPR_GRPC_PORT=%d", ports[i]),
			runsVariable+"="+d.runs)}}
		w.Options.Prefix, w.Options.Stdout, w.Options.Stderr = "  worker of "+n.ID+" | ", d.out, d.out
		d.workers = append(d.workers, w)
		if err := errors.Join(n.Start(), w.Start()); err != nil {
			return err
		}
		d.out.Say("  %s  %s  pid %-7d  worker  pid %d", n.ID, n.Base(), n.Pid(), w.Pid())
	}
	d.out.Say("\nThey form a cluster. A node votes when it has all data, which takes up to twenty seconds.\n")
	if err := d.cluster.Formed(ctx, func(what string) { d.out.Say("  %s", what) }); err != nil {
		return err
	}
	d.out.Say("  all three nodes vote: any one of them may fail from now on")
	return nil
}

// one places one order that cannot be shipped, and shows its steps.
func (d *demo) one(ctx context.Context) error {
	n, o := d.cluster.Nodes[1], order{ID: "first", Customer: "ann", Item: "lamp", Count: 1, Price: 20, To: moon}
	d.out.Say("\n1. AN ORDER is a workflow: reserve, charge, ship. This one cannot be shipped:\n\n"+
		"  curl -X %s %s%s -d '%s'", http.MethodPost, n.Base(), path+"order/start?instanceID="+o.ID, demokit.Text(o))
	if err := d.order(ctx, 0, o); err != nil {
		return err
	}
	shown, err := n.Quorate(ctx, "workflows", "show", "shop", o.ID)
	if err != nil {
		return err
	}
	_, table, _ := strings.Cut(string(shown), "EVENT")
	d.out.Say("  quorate workflows show shop %s\n\n  %s", o.ID,
		strings.ReplaceAll("EVENT"+strings.TrimRight(table, "\n"), "\n", "\n  "))
	d.out.Say("\nThe customer has the money back, and the lamp is in stock again.")
	return nil
}

// crashes kills workers and leaders while customers order, and starts them again.
func (d *demo) crashes(ctx context.Context) error {
	d.out.Say("\n2. CRASHES. %d customers order all the time. Every fourth order goes to the moon.\n\n"+
		"  second  completed  canceled  on their way", customers)
	d.books.second()
	stop := make(chan struct{})
	var all sync.WaitGroup
	errs := make([]error, customers)
	for i := range customers {
		all.Go(func() { errs[i] = d.customer(ctx, i, stop) })
	}
	var err error
	for round := 0; round < d.rounds && err == nil; round++ {
		for _, c := range []struct{ worker, leader bool }{{worker: true}, {leader: true}, {true, true}} {
			if err = d.crash(ctx, round, c.worker, c.leader); err != nil {
				break
			}
		}
	}
	if err == nil {
		err = d.watch(ctx, calm)
	}
	close(stop)
	all.Wait()
	return errors.Join(append(errs, err)...)
}

// crash kills the leader if leads is true, and a worker if worker is true, and then starts them again. If both are
// true, the worker is the one beside the leader. If only worker is true, the parameter round selects the worker.
func (d *demo) crash(ctx context.Context, round int, worker, leads bool) error {
	if err := d.watch(ctx, calm); err != nil {
		return err
	}
	leader, err := d.cluster.Leader(ctx, d.cluster.Nodes[0])
	if err != nil {
		return err
	}
	number := max(0, slices.Index(d.cluster.Nodes, leader))
	if !leads {
		number += 1 + round // another one
	}
	n, w := d.node(number), d.workers[number%size]
	var start []func() error
	var killed []string
	if leads {
		killed = append(killed, fmt.Sprintf("kill -9 %d  ends %s, the leader", n.Pid(), n.ID))
		start = append(start, func() error { return n.Start() })
		n.Kill()
	}
	if worker {
		killed = append(killed, fmt.Sprintf("kill -9 %d  ends the worker of %s", w.Pid(), n.ID))
		start = append(start, w.Start)
		w.Kill()
	}
	d.out.Say("          %s", strings.Join(killed, "; "))
	if err := d.watch(ctx, gone); err != nil {
		return err
	}
	d.out.Say("          what was killed starts again")
	for _, f := range start {
		err = errors.Join(err, f())
	}
	if err == nil {
		err = d.cluster.Ready(ctx, n)
	}
	return err
}

// watch prints how many orders have ended in each of the next seconds.
func (d *demo) watch(ctx context.Context, seconds int) error {
	return demokit.Seconds(ctx, seconds, func() {
		d.seconds++
		completed, canceled, open := d.books.second()
		d.out.Say("  %6d  %9d  %8d  %12d  %s%s", d.seconds, completed, canceled, open,
			strings.Repeat("#", min(completed, 50)), strings.Repeat("-", min(canceled, 20)))
	})
}
