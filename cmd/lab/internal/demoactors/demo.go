package demoactors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
	"github.com/quorate/quorate/internal/listen"
)

const (
	size     = 3
	interval = 2 * time.Second // from the start of a pair to the next kill
	backTime = time.Minute     // for a pair to host actors again, and for an account to be served again
)

// demo is one run of the demo.
type demo struct {
	out      *launcher.Lines
	binary   string
	app      []string // the command that runs the application
	duration time.Duration
	stay     bool

	cluster *launcher.Cluster
	apps    []*launcher.Process // beside the nodes
	turns   turns
	ledger  ledger
}

func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "quorate-actors-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.cluster, err = launcher.New(ctx, launcher.Plan{Program: d.binary, Dir: dir, Size: size, FirstPort: 3500,
		Flags: []string{"--log-level", "error", "--app-id", "bank", "--console", "--console-port", "0"}}); err != nil {
		return err
	}
	d.turns = turns{dir: filepath.Join(dir, "turns")}
	if err := os.Mkdir(d.turns.dir, 0o700); err != nil {
		return err
	}
	d.ledger = ledger{orders: map[string]transfer{}, acknowledged: map[string]transfer{}}
	if err := d.applications(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cluster.Stop(), launcher.StopAll(d.apps...)) }()
	for i := range d.apps {
		if err := d.start(i); err != nil {
			return err
		}
	}
	d.out.Say("Three nodes are starting. A server becomes a voter when it is up to date, which takes about twenty " +
		"seconds.")
	if err := d.cluster.Formed(ctx, func(what string) { d.out.Say("  %s", what) }); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	d.out.Say("\nThe books balance: every account has what its transfers say, and no money was lost or made.")
	if d.stay {
		d.out.Say("The nodes run until Ctrl-C.")
		<-ctx.Done()
	}
	return nil
}

// applications prepares the processes of the nodes and of the applications beside them.
func (d *demo) applications(ctx context.Context) error {
	ports, err := listen.Spare(ctx, size)
	if err != nil {
		return err
	}
	for i, n := range d.cluster.Nodes {
		n.Options.Prefix, n.Options.Stderr = "  "+n.ID+" | ", d.out
		app := n.Beside(d.app, ports[i], turnsVariable+"="+d.turns.dir)
		app.Options.Prefix, app.Options.Stdout, app.Options.Stderr = "  application of "+n.ID+" | ", d.out, d.out
		d.apps = append(d.apps, app)
	}
	return nil
}

// start starts a node and the application beside it.
func (d *demo) start(i int) error {
	return errors.Join(d.apps[i].Start(), d.cluster.Nodes[i].Start())
}

// show moves money while it kills pairs of a node and its application, and then checks the books.
func (d *demo) show(ctx context.Context) error {
	for i := range d.cluster.Nodes {
		if err := d.hosted(ctx, i, i); err != nil {
			return err
		}
	}
	if _, err := d.balances(ctx); err != nil { // activates the accounts, on all nodes
		return err
	}
	d.out.Say("\nThree nodes form one cluster. Each has an instance of the bank beside it:\n")
	for i, n := range d.cluster.Nodes {
		d.out.Say("  %s  %s  pid %d, application pid %d", n.ID, n.Base(), n.Pid(), d.apps[i].Pid())
	}
	first := d.cluster.Nodes[0]
	d.out.Say("\nTypes, owners, epochs and reminders, in a terminal and in the browser (page Actors):\n\n"+
		"  %s actors list --data-dir %s\n  %s console --data-dir %s", d.binary, first.DataDir, d.binary, first.DataDir)
	d.out.Say("\n%d accounts have %d each. %d clients transfer money, through all nodes.\n", accounts, opening, clients)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for number := range clients {
		all.Go(func() { d.client(ctx, number, stop) })
	}
	err := d.killPairs(ctx)
	close(stop)
	all.Wait()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	return d.audit(ctx)
}

// killPairs kills the pairs of a node and its application one after another, and starts each pair again. It begins with
// the pair of the leader. It kills every pair at least once, and continues until d.duration has passed.
func (d *demo) killPairs(ctx context.Context) error {
	begin := time.Now()
	leader, err := d.cluster.Leader(ctx, d.cluster.Nodes[0])
	if err != nil {
		return err
	}
	first := max(0, slices.Index(d.cluster.Nodes, leader))
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := first; i < first+size || time.Since(begin) < d.duration; i++ {
		tick.Reset(interval)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := d.killPair(ctx, i%size); err != nil {
			return err
		}
	}
	return nil
}

// killPair kills a node and its application, measures how long the accounts on this node are unavailable, and starts
// both processes again.
func (d *demo) killPair(ctx context.Context, i int) error {
	n, other := d.cluster.Nodes[i], (i+1)%size
	leader, err := d.cluster.Leader(ctx, n)
	if err != nil {
		return err
	}
	list, err := d.list(ctx, other)
	if err != nil {
		return err
	}
	var owned []string
	for _, a := range list.Actors {
		if a.Type == "Account" && a.Node == n.ID {
			owned = append(owned, a.ID)
		}
	}
	role := ""
	if leader == n {
		role = ", the leader,"
	}
	d.out.Say("kill -9 %d %d  ends %s%s and its application, with %d accounts", n.Pid(), d.apps[i].Pid(), n.ID, role,
		len(owned))
	killed := time.Now()
	n.Kill()
	d.apps[i].Kill()
	stopped, err := d.servedAgain(ctx, other, owned, killed)
	if err != nil {
		return err
	}
	if len(stopped) > 0 {
		d.out.Say("  the next calls of these accounts were served after %s (median), %s (slowest)",
			stopped[len(stopped)/2].Round(time.Millisecond), stopped[len(stopped)-1].Round(time.Millisecond))
	}
	started := time.Now()
	if err := d.start(i); err != nil {
		return err
	}
	if err := d.cluster.Ready(ctx, n); err != nil {
		return err
	}
	if err := d.hosted(ctx, other, i); err != nil {
		return err
	}
	moved, err := n.Quorate(ctx, "actors", "rebalance", "Account")
	if err != nil {
		return err
	}
	d.out.Say("  %s hosts actors again %s after its start; quorate actors rebalance Account: %s", n.ID,
		time.Since(started).Round(time.Millisecond), moved[:max(0, len(moved)-1)])
	return nil
}

// servedAgain calls each of the given accounts until a call succeeds. It returns the times from the kill of their node
// to the first success, in ascending order.
func (d *demo) servedAgain(ctx context.Context, at int, owned []string, killed time.Time) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	stopped := make([]time.Duration, len(owned))
	var all sync.WaitGroup
	errs := make([]error, len(owned))
	for i, id := range owned {
		all.Go(func() {
			errs[i] = demokit.Poll(ctx, func() error {
				return d.call(ctx, at+i%2, "Account/"+id, "balance", struct{}{}, nil)
			})
			stopped[i] = time.Since(killed)
		})
	}
	all.Wait()
	slices.Sort(stopped)
	return stopped, errors.Join(errs...)
}

// actors is the part of the output of quorate actors list that is needed here.
type actors struct {
	Hosts []struct {
		Node  string
		Types []string
	}
	Actors []struct{ Type, ID, Node string }
}

// list returns the actors of the bank, as the node with the number at lists them.
func (d *demo) list(ctx context.Context, at int) (actors, error) {
	out, err := d.cluster.Nodes[at].Quorate(ctx, "actors", "list", "--json", "--limit", "10000")
	if err != nil {
		return actors{}, err
	}
	var apps []actors
	if err := json.Unmarshal(out, &apps); err != nil || len(apps) == 0 {
		return actors{}, err
	}
	return apps[0], nil
}

// hosted waits until one node lists another as a host of accounts. The parameters at and host are the numbers of the
// two nodes, in this order.
func (d *demo) hosted(ctx context.Context, at, host int) error {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	id := d.cluster.Nodes[host].ID
	return demokit.Poll(ctx, func() error {
		a, err := d.list(ctx, at)
		if err != nil {
			return err
		}
		for _, h := range a.Hosts {
			if h.Node == id && slices.Contains(h.Types, "Account") {
				return nil
			}
		}
		return fmt.Errorf("%s does not host accounts", id)
	})
}
