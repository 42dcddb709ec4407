package demo

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

const (
	customers = 4
	rate      = 20 * time.Millisecond // between two orders of a customer
	retry     = 50 * time.Millisecond // before an order is sent again
	orderTime = time.Minute           // for an order to be acknowledged
)

// books record the receipts of the acknowledged orders, and how the orders went. They are safe for concurrent use.
type books struct {
	mu      sync.Mutex
	receipt map[string]receipt // guarded by mu: of each acknowledged order
	again   int                // guarded by mu: orders that were sent again
	slowest time.Duration      // guarded by mu: until the acknowledgement
	recent  int                // guarded by mu: orders acknowledged since the last call of second
}

func (b *books) acknowledge(r receipt, attempts int, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.receipt[r.Order] = r
	b.recent++
	b.slowest = max(b.slowest, took)
	if attempts > 1 {
		b.again++
	}
}

// second returns how many orders were acknowledged since the previous call of second.
func (b *books) second() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.recent
	b.recent = 0
	return n
}

// customer places orders until stop is closed. It waits until each order is acknowledged, including the last one. It
// sends an order first to the node with the given number. If that node fails, it tries the next node.
func (d *demo) customer(ctx context.Context, number int, stop <-chan struct{}) error {
	tick := time.NewTicker(rate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		if err := d.order(ctx, number, order{ID: fmt.Sprintf("%d-%d", number, i), Item: "lamp", Count: 1}); err != nil {
			return err
		}
	}
}

// order sends an order to one node after the other until it is acknowledged. It begins with the node that has the given
// number.
func (d *demo) order(ctx context.Context, at int, o order) error {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	begin := time.Now()
	for attempt := 1; ; attempt++ {
		r, err := place(ctx, d.cluster.Nodes[(at+attempt-1)%size], o)
		if err == nil {
			d.books.acknowledge(r, attempt, time.Since(begin))
			return nil
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return fmt.Errorf("the order %s was not acknowledged: %w", o.ID, err)
		}
	}
}

// place sends an order through a node to the application orders. It returns an error if the receipt does not belong
// to the order.
func place(ctx context.Context, n *launcher.Node, o order) (r receipt, err error) {
	err = n.Call(ctx, http.MethodPost, orderPath, demokit.Text(o), &r)
	if err == nil && r.Order != o.ID {
		err = fmt.Errorf("order %s: the receipt is for order %s", o.ID, r.Order)
	}
	return r, err
}
