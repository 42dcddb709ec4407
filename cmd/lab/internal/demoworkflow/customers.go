package demoworkflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

const (
	customers = 8
	orderTime = time.Minute // for an order to be acknowledged, and to end
	path      = "/v1.0/workflows/dapr/"
)

// books record the acknowledged orders and their outcomes. They are safe for concurrent use.
type books struct {
	mu      sync.Mutex
	orders  map[string]order // guarded by mu: all that were acknowledged
	ended   map[string]outcome
	again   int           // guarded by mu: orders that were sent again
	slowest time.Duration // guarded by mu: from the first attempt to the end
	recent  struct{ completed, canceled int }
}

func (b *books) acknowledge(o order, attempts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders[o.ID] = o
	if attempts > 1 {
		b.again++
	}
}

func (b *books) end(id string, out outcome, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended[id] = out
	b.slowest = max(b.slowest, took)
	if out.Completed {
		b.recent.completed++
	} else {
		b.recent.canceled++
	}
}

// second returns how many orders were completed, and how many were canceled, since the previous call of second. It also
// returns how many orders have not ended yet.
func (b *books) second() (completed, canceled, open int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	completed, canceled = b.recent.completed, b.recent.canceled
	b.recent.completed, b.recent.canceled = 0, 0
	return completed, canceled, len(b.orders) - len(b.ended)
}

// customer places orders until stop is closed. It waits until each order has ended, so none of its orders is open
// when it returns nil.
func (d *demo) customer(ctx context.Context, number int, stop <-chan struct{}) error {
	items := []string{"lamp", "chair", "table", "clock"}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		o := order{ID: fmt.Sprintf("order-%d-%d", number, i), Customer: fmt.Sprintf("c%d", number),
			Item: items[i%len(items)], Count: 1 + i%3, Price: 10 + i%7, To: "Berlin"}
		if (number+i)%4 == 1 {
			o.To = moon
		}
		if err := d.order(ctx, number, o); err != nil {
			return err
		}
	}
}

// order places an order and waits until it has ended. The parameter at selects the node of the first attempt. Each
// further attempt uses the next node.
func (d *demo) order(ctx context.Context, at int, o order) error {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	begin, attempts := time.Now(), 0
	err := demokit.Poll(ctx, func() error {
		attempts++
		err := d.node(at+attempts).Call(ctx, http.MethodPost, path+"order/start?instanceID="+o.ID, demokit.Text(o),
			nil)
		if attempts > 1 && saysExists(err) {
			return nil // an earlier attempt has started it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s was not acknowledged: %w", o.ID, err)
	}
	d.books.acknowledge(o, attempts)
	var out outcome
	err = demokit.Poll(ctx, func() error {
		attempts++
		var err error
		out, err = readOutcome(ctx, d.node(at+attempts), o.ID)
		return err
	})
	if err != nil {
		return err
	}
	d.books.end(o.ID, out, time.Since(begin))
	return nil
}

// saysExists reports whether err means that an instance was not started because it already exists.
func saysExists(err error) bool {
	r, ok := errors.AsType[*launcher.Refused](err)
	return ok && strings.HasPrefix(r.Message(), "error starting workflow 'order': an active workflow with ID ") &&
		strings.HasSuffix(r.Message(), " already exists")
}

// readOutcome returns the outcome of an order. It returns an error if the order has not ended.
func readOutcome(ctx context.Context, n *launcher.Node, id string) (out outcome, err error) {
	var state struct {
		Status     string            `json:"runtimeStatus"`
		Properties map[string]string `json:"properties"`
	}
	if err := n.Call(ctx, http.MethodGet, path+id, "", &state); err != nil {
		return out, fmt.Errorf("%s: %w", id, err)
	}
	if state.Status != "COMPLETED" {
		return out, fmt.Errorf("%s is %s: %s", id, state.Status,
			state.Properties["dapr.workflow.failure.error_message"])
	}
	return out, json.Unmarshal([]byte(state.Properties["dapr.workflow.output"]), &out)
}

func (d *demo) node(i int) *launcher.Node { return d.cluster.Nodes[i%size] }
