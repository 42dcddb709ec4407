package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
	"github.com/quorate/quorate/internal/listen"
)

const (
	size     = 3
	initial  = 10_000           // lamps
	calm     = 6                // seconds before the kill
	after    = 10               // seconds between the kill and the next start
	whole    = 8                // seconds with three nodes again
	takeTime = 30 * time.Second // for the second node to become the leader

	statePath = "/v1.0/state/statestore"
	orderPath = "/v1.0/invoke/" + orders + "/method/order"
	leftPath  = "/v1.0/invoke/" + stock + "/method/left"
)

// demo is one run of the demo.
type demo struct {
	out    *launcher.Lines
	binary string
	app    []string // the command that runs an application, without its name
	stay   bool

	cluster *launcher.Cluster
	apps    []*launcher.Process // beside the nodes
	books   books
	seconds int // of orders that were printed
}

func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "quorate-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.cluster, err = launcher.New(ctx, launcher.Plan{Program: d.binary, Dir: dir, Size: size, FirstPort: 3500,
		Flags: []string{"--log-level", "error"}}); err != nil {
		return err
	}
	d.books.receipt = map[string]receipt{}
	defer func() { err = errors.Join(err, d.cluster.Stop(), launcher.StopAll(d.apps...)) }()
	for _, step := range []func(context.Context) error{d.start, d.state, d.call, d.crash, d.audit} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.stay {
		d.out.Say("The nodes run until Ctrl-C. Order a lamp:\n\n  curl %s%s -d '%s'\n", d.cluster.Nodes[0].Base(),
			orderPath, demokit.Text(order{ID: "mine", Item: "lamp", Count: 1}))
		<-ctx.Done()
	}
	return nil
}

// start starts the nodes, each with an application beside it, and waits for the cluster.
func (d *demo) start(ctx context.Context) error {
	ports, err := listen.Spare(ctx, size)
	if err != nil {
		return err
	}
	d.out.Say("Three nodes start on this machine, each in its own process with its own data and an application " +
		"beside it:\n")
	for i, n := range d.cluster.Nodes {
		name := stock
		if i == 0 {
			name = orders
		}
		n.Flags = append(n.Flags, "--app-id", name)
		n.Options.Prefix, n.Options.Stderr = "  "+n.ID+" | ", d.out
		app := n.Beside(append(slices.Clone(d.app), name), ports[i], nameVariable+"="+name+" at "+n.ID)
		app.Options.Prefix, app.Options.Stderr = "  "+name+" at "+n.ID+" | ", d.out
		d.apps = append(d.apps, app)
		if err := errors.Join(app.Start(), n.Start()); err != nil {
			return err
		}
		d.out.Say("  %s  %s  pid %-7d  %-6s  pid %d", n.ID, n.Base(), n.Pid(), name, app.Pid())
	}
	d.out.Say("\nThey form a cluster. A node votes when it has all data, which takes up to twenty seconds.\n")
	if err := d.cluster.Formed(ctx, func(what string) { d.out.Say("  %s", what) }); err != nil {
		return err
	}
	d.out.Say("  all three nodes vote: any one of them may fail from now on")
	return nil
}

// state saves a value at one node and reads it at another.
func (d *demo) state(ctx context.Context) error {
	writer, reader := d.cluster.Nodes[1], d.cluster.Nodes[2]
	d.out.Say("\n1. STATE. Save how many lamps are in stock at n2, and read it at n3:\n")
	body := demokit.Text([]demokit.Item{demokit.Always("lamp", initial)})
	d.out.Say("  curl %s%s -d '%s'", writer.Base(), statePath, body)
	if err := writer.Call(ctx, http.MethodPost, statePath, body, nil); err != nil {
		return err
	}
	const path = statePath + "/lamp?consistency=strong"
	var got int
	d.out.Say("  curl '%s%s'", reader.Base(), path)
	if err := reader.Call(ctx, http.MethodGet, path, "", &got); err != nil {
		return err
	}
	d.out.Say("  %d", got)
	if got != initial {
		return fmt.Errorf("n3 has %d lamps, and %d were saved at n2", got, initial)
	}
	return nil
}

// call places one order.
func (d *demo) call(ctx context.Context) error {
	n, o := d.cluster.Nodes[2], order{ID: "first", Item: "lamp", Count: 1}
	d.out.Say("\n2. CALLS. Order a lamp at n3. The node finds the application orders at n1, which calls stock:\n")
	d.out.Say("  curl %s%s -d '%s'", n.Base(), orderPath, demokit.Text(o))
	r, err := place(ctx, n, o)
	if err != nil {
		return err
	}
	d.books.acknowledge(r, 1, 0)
	d.out.Say("  %s", demokit.Text(r))
	return nil
}

// crash kills the second node and its application while customers order, and starts both again.
func (d *demo) crash(ctx context.Context) error {
	victim, app := d.cluster.Nodes[1], d.apps[1]
	d.out.Say("\n3. A CRASH. %d customers order lamps all the time. An order without an answer is sent again, at "+
		"another node.\n", customers)
	if err := d.lead(ctx, victim); err != nil {
		return err
	}
	d.books.second()
	stop := make(chan struct{})
	var all sync.WaitGroup
	errs := make([]error, customers)
	for i := range customers {
		all.Go(func() { errs[i] = d.customer(ctx, i, stop) })
	}
	d.out.Say("  second  orders")
	err := d.watch(ctx, calm)
	if err == nil {
		d.out.Say("          kill -9 %d %d  ends n2, the leader, and its application stock", victim.Pid(), app.Pid())
		victim.Kill()
		app.Kill()
		err = d.watch(ctx, after)
	}
	if err == nil {
		d.out.Say("          n2 and its application start again")
		err = errors.Join(app.Start(), victim.Start())
	}
	if err == nil {
		err = d.watch(ctx, whole)
	}
	close(stop)
	all.Wait()
	return errors.Join(append(errs, err)...)
}

// lead transfers the leadership to a node, and returns when this node is the leader.
func (d *demo) lead(ctx context.Context, n *launcher.Node) error {
	ctx, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	for {
		leader, err := d.cluster.Leader(ctx, n)
		if leader == n || err != nil {
			return err
		}
		if _, err := n.Quorate(ctx, "transfer-leader", n.ID); err != nil && ctx.Err() != nil {
			return err
		}
	}
}

// watch prints how many orders are acknowledged in each of the next seconds.
func (d *demo) watch(ctx context.Context, seconds int) error {
	return demokit.Seconds(ctx, seconds, func() {
		d.seconds++
		n := d.books.second()
		d.out.Say("  %6d  %6d  %s", d.seconds, n, strings.Repeat("#", min(n/4, 60)))
	})
}

// audit prints the books, and returns an error if they do not balance.
func (d *demo) audit(ctx context.Context) error {
	b, n := &d.books, d.cluster.Nodes[0]
	var left int
	if err := n.Call(ctx, http.MethodPost, leftPath, demokit.Text(order{Item: "lamp"}), &left); err != nil {
		return err
	}
	kept, err := d.kept(ctx, n)
	if err != nil {
		return err
	}
	d.out.Say("\n4. THE BOOKS.\n")
	d.out.Say("  %6d  orders were acknowledged; the slowest took %s", len(b.receipt), b.slowest.Round(time.Millisecond))
	d.out.Say("  %6d  of them were sent again, because their node or an application was gone", b.again)
	d.out.Say("  %6d  of the acknowledged orders are in the store", kept)
	d.out.Say("  %6d  lamps were in stock, and %d are left: %d are gone", initial, left, initial-left)
	if kept != len(b.receipt) || initial-left != len(b.receipt) {
		return fmt.Errorf("the books do not balance: %d orders were acknowledged, %d are in the store, and %d lamps "+
			"are gone", len(b.receipt), kept, initial-left)
	}
	d.out.Say("\nThe books balance: no acknowledged order was lost, and none was carried out twice.")
	return nil
}

// kept counts the acknowledged orders whose receipt in the store equals the acknowledged receipt. It reads the store
// through the node n.
func (d *demo) kept(ctx context.Context, n *launcher.Node) (kept int, err error) {
	for ids := range slices.Chunk(slices.Collect(maps.Keys(d.books.receipt)), 100) {
		keys := make([]string, len(ids))
		for i, id := range ids {
			keys[i] = "order-" + id
		}
		var items []struct{ Data json.RawMessage }
		body := demokit.Text(map[string]any{"keys": keys})
		if err := n.Call(ctx, http.MethodPost, statePath+"/bulk?consistency=strong", body, &items); err != nil {
			return 0, err
		}
		for i, it := range items {
			if string(it.Data) == demokit.Text(d.books.receipt[ids[i]]) {
				kept++
			}
		}
	}
	return kept, nil
}
