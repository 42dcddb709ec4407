package demoapps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/demonode"
)

const initial = 1000 // number of each item in stock

// demo is one run of the demo.
type demo struct {
	out    *demonode.Lines
	binary string
	script string
	python string
	orders int
	stay   bool

	nodes []*node
}

func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "quorate-apps-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := demonode.New(ctx, d.out, d.binary, dir)
	if err != nil {
		return err
	}
	defer cluster.End()
	if err := d.start(cluster); err != nil {
		return err
	}
	d.out.Say("Three nodes are starting. A server becomes a voter when it is up to date, which takes about twenty " +
		"seconds.")
	if err := cluster.Formed(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	d.out.Say("\nEvery order was served, and the stock matches the orders.")
	if d.stay {
		d.out.Say("The other two nodes run until Ctrl-C. Place an order at one of them:\n")
		for _, n := range []*node{d.nodes[0], d.nodes[2]} {
			d.out.Say("  curl %s -d '%s'", n.Base()+"/v1.0/invoke/orders/method/order",
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
	d.out.Say("%s is not installed: stock runs as a second Go program.", d.python)
	self, err := os.Executable()
	return []string{self, AppWord, "stock"}, "Go", err
}

// start starts the three nodes, each with its application.
func (d *demo) start(cluster *demonode.Cluster) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stock, language, err := d.stock()
	if err != nil {
		return err
	}
	for i, app := range []string{"orders", "stock", "stock"} {
		command, words := []string{self, AppWord, "orders"}, "Go"
		if app == "stock" {
			command, words = stock, language
		}
		n := &node{Node: cluster.Nodes[i], app: app, language: words}
		if err := n.Start(append([]string{"--app-id", app, "--"}, command...)...); err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	return nil
}

// show places orders and prints the results.
func (d *demo) show(ctx context.Context) error {
	d.out.Say("\nThree nodes form one cluster:\n")
	for _, n := range d.nodes {
		d.out.Say("  %s  %s  with %s, in %s", n.ID, n.Base(), n.app, n.language)
	}
	d.out.Say("\nPlacing an order at n3, which knows from gossip that orders runs at n1:\n")
	one := order{ID: "first", Item: "tea", Count: 2}
	d.out.Say("  curl %s/v1.0/invoke/orders/method/order -d '%s'", d.nodes[2].Base(), one)
	answer, err := d.nodes[2].place(ctx, one)
	if err != nil {
		return err
	}
	d.out.Say("  %s", answer)
	d.out.Say("\n%d concurrent orders at all three nodes, shared by the instances of stock:\n", d.orders)
	if err := d.many(ctx, "a", d.nodes); err != nil {
		return err
	}
	second := d.nodes[1]
	d.out.Say("\nkill -9 %d ends the node n2 with its instance of stock. %d more orders:\n", second.Pid(),
		d.orders)
	second.Kill()
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
		if name := "stock in " + n.language + " at " + n.ID; by[name] > 0 {
			d.out.Say("  %s served %d", name, by[name])
		}
	}
	d.out.Say("  all within %s, %d failed", time.Since(begin).Round(time.Millisecond), len(errs))
	return errors.Join(errs...)
}

// audit reads the remaining stock through the first node, and returns an error if it differs from want.
func (d *demo) audit(ctx context.Context, want int) error {
	const path = "/v1.0/invoke/stock/method/left/tea"
	var got struct{ Left int }
	if err := d.nodes[0].Call(ctx, "GET", path, "", &got); err != nil {
		return err
	}
	d.out.Say("\n  curl %s%s\n  {\"left\": %d}", d.nodes[0].Base(), path, got.Left)
	if got.Left != want {
		return fmt.Errorf("%d are left of %d, not %d", got.Left, initial, want)
	}
	return nil
}
