package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

// The ids of the applications.
const (
	orders = "orders"
	stock  = "stock"
)

// order is an order of a customer.
type order struct {
	ID    string `json:"id"`
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// receipt is the answer to an order. Both applications keep it.
type receipt struct {
	Order string `json:"order"`
	Left  int    `json:"left"` // of the item, after the order
	By    string `json:"by"`   // the instance of stock
}

// sidecar is the node beside an application.
type sidecar struct {
	demokit.Sidecar
	name string // of this instance, for receipts
}

// serve runs an application until ctx ends.
func serve(ctx context.Context, routes func(sidecar, *http.ServeMux)) error {
	mux := http.NewServeMux()
	routes(sidecar{Sidecar: demokit.Beside(), name: os.Getenv(nameVariable)}, mux)
	return demokit.Serve(ctx, mux)
}

// nameVariable is the environment variable with the name of the instance.
const nameVariable = "DEMO_INSTANCE"

// serveOrders registers the handler of the application orders. For each order, the handler calls the application stock,
// which carries out the order and returns a receipt. The handler then saves the receipt.
func (s sidecar) serveOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", handle(func(ctx context.Context, o order) (r receipt, err error) {
		if err := s.Send(ctx, http.MethodPost, "/invoke/"+stock+"/method/take", o, &r); err != nil {
			return r, err
		}
		_, err = s.Save(ctx, demokit.Always("order-"+o.ID, r))
		return r, err
	}))
}

// serveStock registers the handlers of the application stock, which counts how many of each item are left.
func (s sidecar) serveStock(mux *http.ServeMux) {
	mux.HandleFunc("POST /take", handle(s.take))
	mux.HandleFunc("POST /left", handle(func(ctx context.Context, o order) (left int, err error) {
		_, _, err = s.Get(ctx, o.Item, &left)
		return left, err
	}))
}

// take carries out an order and returns its receipt. If the order was carried out before, take changes nothing and
// returns the first receipt.
func (s sidecar) take(ctx context.Context, o order) (r receipt, err error) {
	for {
		if _, found, err := s.Get(ctx, "order-"+o.ID, &r); found || err != nil {
			return r, err
		}
		var left int
		etag, found, err := s.Get(ctx, o.Item, &left)
		if err != nil {
			return r, err
		}
		if !found || left < o.Count {
			return r, fmt.Errorf("too few of %s are left", o.Item)
		}
		r = receipt{Order: o.ID, Left: left - o.Count, By: s.name}
		// Both or none: only if the count is still the one that was read, and the receipt does not exist.
		saved, err := s.Save(ctx, demokit.If(o.Item, etag, r.Left), demokit.If("order-"+o.ID, "", r))
		if !saved && err == nil {
			continue // another order was faster
		}
		return r, err
	}
}

// handle returns an HTTP handler that calls f. It decodes the argument of f from the JSON body of the request, and
// encodes the result as JSON. If f fails, the status is 502.
func handle[In, Out any](f func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := f(r.Context(), in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the caller may have gone away
	}
}
