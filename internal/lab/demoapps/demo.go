package demoapps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/listen"
)

const (
	size     = 3
	initial  = 1000                   // number of each item in stock
	patience = 2 * time.Minute        // for the cluster to form
	pause    = 100 * time.Millisecond // between two checks of the nodes
)

// demo is one run of the demo.
type demo struct {
	out    *lines
	binary string
	script string
	python string
	orders int
	stay   bool

	dir   string
	nodes []*node
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.binary, err = filepath.Abs(d.binary); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "quorate-apps-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	defer d.end()
	if err := d.start(ctx); err != nil {
		return err
	}
	d.out.say("Three nodes are starting. A server becomes a voter when it is up to date, which takes about twenty " +
		"seconds.")
	if err := d.formed(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	d.out.say("\nEvery order was served, and the stock matches the orders.")
	if d.stay {
		d.out.say("The other two nodes run until Ctrl-C. Place an order at one of them:\n")
		for _, n := range []*node{d.nodes[0], d.nodes[2]} {
			d.out.say("  curl %s -d '%s'", n.base()+"/v1.0/invoke/orders/method/order",
				order{ID: "mine", Item: "tea", Count: 1})
		}
		<-ctx.Done()
	}
	return nil
}

// stock returns the command of the application stock, and its language.
func (d *demo) stock() (command []string, language string, err error) {
	if python, err := exec.LookPath(d.python); err == nil {
		script, err := filepath.Abs(d.script)
		return []string{python, script}, "Python", err
	}
	d.out.say("%s is not installed: stock runs as a second Go program.", d.python)
	self, err := os.Executable()
	return []string{self, AppWord, "stock"}, "Go", err
}

// start starts the three nodes, each with its application.
func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stock, language, err := d.stock()
	if err != nil {
		return err
	}
	seeds, err := gossipPorts(ctx)
	if err != nil {
		return err
	}
	for i, app := range []string{"orders", "stock", "stock"} {
		command, words := []string{self, AppWord, "orders"}, "Go"
		if app == "stock" {
			command, words = stock, language
		}
		n := &node{id: fmt.Sprintf("n%d", i+1), app: app, language: words,
			dir: filepath.Join(d.dir, fmt.Sprintf("n%d", i+1))}
		if err := n.start(ctx, d.out, d.binary, seeds, i, command); err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	return nil
}

// formed waits until all nodes and applications serve and all nodes are voters. From then on the cluster tolerates the
// failure of any one node.
func (d *demo) formed(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := d.look(limit)
		if err == nil {
			return nil
		}
		for _, n := range d.nodes {
			if n.gone() {
				return fmt.Errorf("%s ended before the cluster was ready: %w", n.id, n.process.Err())
			}
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("the cluster is not ready: %w", err)
		}
	}
}

func (d *demo) look(ctx context.Context) error {
	for _, n := range d.nodes {
		if err := n.healthy(ctx); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, d.binary, "status", "--json", "--data-dir",
		d.nodes[0].dir).Output() //nolint:gosec // the program to show
	if err != nil {
		return fmt.Errorf("quorate status: %w", err)
	}
	var s struct {
		Groups []struct {
			Servers []struct{ Voter bool }
		}
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return err
	}
	for _, g := range s.Groups {
		voters := 0
		for _, server := range g.Servers {
			if server.Voter {
				voters++
			}
		}
		if voters != size {
			return fmt.Errorf("%d of %d nodes vote", voters, size)
		}
	}
	return nil
}

// show places orders and prints the results.
func (d *demo) show(ctx context.Context) error {
	d.out.say("\nThree nodes form one cluster:\n")
	for _, n := range d.nodes {
		d.out.say("  %s  %s  with %s, in %s", n.id, n.base(), n.app, n.language)
	}
	d.out.say("\nPlacing an order at n3, which knows from gossip that orders runs at n1:\n")
	one := order{ID: "first", Item: "tea", Count: 2}
	d.out.say("  curl %s/v1.0/invoke/orders/method/order -d '%s'", d.nodes[2].base(), one)
	answer, err := d.nodes[2].place(ctx, one)
	if err != nil {
		return err
	}
	d.out.say("  %s", answer)
	d.out.say("\n%d concurrent orders at all three nodes, shared by the instances of stock:\n", d.orders)
	if err := d.many(ctx, "a", d.nodes); err != nil {
		return err
	}
	second := d.nodes[1]
	d.out.say("\nkill -9 %d ends the node n2 with its instance of stock. %d more orders:\n", second.process.Pid(),
		d.orders)
	second.kill()
	if err := d.many(ctx, "b", []*node{d.nodes[0], d.nodes[2]}); err != nil {
		return err
	}
	return d.audit(ctx, initial-2-2*d.orders)
}

// many places orders of one item concurrently, and counts them by serving instance.
func (d *demo) many(ctx context.Context, prefix string, at []*node) error {
	var mu sync.Mutex
	by := map[string]int{} // guarded by mu
	var errs []error       // guarded by mu
	var all sync.WaitGroup
	begin := time.Now()
	for i := range d.orders {
		all.Go(func() {
			a, err := at[i%len(at)].place(ctx, order{ID: fmt.Sprint(prefix, i), Item: "tea", Count: 1})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			by[a.ServedBy]++
		})
	}
	all.Wait()
	for _, n := range d.nodes {
		if name := "stock in " + n.language + " at " + n.id; by[name] > 0 {
			d.out.say("  %s served %d", name, by[name])
		}
	}
	d.out.say("  all within %s, %d failed", time.Since(begin).Round(time.Millisecond), len(errs))
	return errors.Join(errs...)
}

// audit reads the remaining stock through the first node, and returns an error if it differs from want.
func (d *demo) audit(ctx context.Context, want int) error {
	const path = "/v1.0/invoke/stock/method/left/tea"
	var got struct{ Left int }
	if err := d.nodes[0].call(ctx, "GET", path, "", &got); err != nil {
		return err
	}
	d.out.say("\n  curl %s%s\n  {\"left\": %d}", d.nodes[0].base(), path, got.Left)
	if got.Left != want {
		return fmt.Errorf("%d are left of %d, not %d", got.Left, initial, want)
	}
	return nil
}

// end stops the nodes and their applications.
func (d *demo) end() {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() { n.stop(ctx) })
	}
	all.Wait()
}

// gossipPorts returns ports for the seeds. Each node needs all of them.
func gossipPorts(ctx context.Context) ([]string, error) {
	ports, err := listen.Spare(ctx, size)
	if err != nil {
		return nil, err
	}
	out := make([]string, size)
	for i, p := range ports {
		out[i] = fmt.Sprintf("127.0.0.1:%d", p)
	}
	return out, nil
}
