package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/quorate/quorate/cmd/internal/launcher"
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

// receipt is the answer to an order, and what both applications keep of it.
type receipt struct {
	Order string `json:"order"`
	Left  int    `json:"left"` // of the item, after the order
	By    string `json:"by"`   // the instance of stock
}

// text returns a value as JSON.
func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // only strings and numbers
	}
	return string(out)
}

// sidecar is the node beside an application, as the application uses it.
type sidecar struct {
	base   string // URL of the API
	client *http.Client
	name   string // of this instance, for receipts
}

// serve runs an application until ctx ends. Like a Dapr application, it listens on the port in APP_PORT, and calls
// the API on the port in DAPR_HTTP_PORT.
func serve(ctx context.Context, routes func(sidecar, *http.ServeMux)) error {
	s := sidecar{base: "http://127.0.0.1:" + os.Getenv("DAPR_HTTP_PORT") + "/v1.0", name: os.Getenv(nameVariable),
		client: &http.Client{Timeout: launcher.AnswerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	mux := http.NewServeMux()
	routes(s, mux)
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("APP_PORT"), Handler: mux,
		ReadHeaderTimeout: launcher.AnswerTime}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// nameVariable is the environment variable with the name of the instance.
const nameVariable = "DEMO_INSTANCE"

// serveOrders is the application orders: it has each order carried out by stock, and keeps the receipt.
func (s sidecar) serveOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", handle(func(ctx context.Context, o order) (r receipt, err error) {
		if err := s.send(ctx, "/invoke/"+stock+"/method/take", o, &r); err != nil {
			return r, err
		}
		return r, s.send(ctx, "/state/statestore", []item{{Key: "order-" + o.ID, Value: r, Options: strong}}, nil)
	}))
}

// serveStock is the application stock: it counts what is left of each item.
func (s sidecar) serveStock(mux *http.ServeMux) {
	mux.HandleFunc("POST /take", handle(s.take))
	mux.HandleFunc("POST /left", handle(func(ctx context.Context, o order) (left int, err error) {
		_, _, err = s.get(ctx, o.Item, &left)
		return left, err
	}))
}

// take carries out an order. If that was done before, it returns the receipt of then.
func (s sidecar) take(ctx context.Context, o order) (r receipt, err error) {
	for {
		if _, found, err := s.get(ctx, "order-"+o.ID, &r); found || err != nil {
			return r, err
		}
		var left int
		etag, found, err := s.get(ctx, o.Item, &left)
		if err != nil {
			return r, err
		}
		if !found || left < o.Count {
			return r, fmt.Errorf("too few of %s are left", o.Item)
		}
		r = receipt{Order: o.ID, Left: left - o.Count, By: s.name}
		// Both or none: only if the count is still the one that was read, and the receipt does not exist.
		err = s.send(ctx, "/state/statestore", []item{{Key: o.Item, Value: r.Left, ETag: etag, Options: firstWrite},
			{Key: "order-" + o.ID, Value: r, Options: firstWrite}}, nil)
		if refused := (*launcher.Refused)(nil); errors.As(err, &refused) && refused.Status == http.StatusConflict {
			continue // another order was faster
		}
		return r, err
	}
}

// item is one key to save.
type item struct {
	Key     string            `json:"key"`
	Value   any               `json:"value"`
	ETag    string            `json:"etag,omitempty"`
	Options map[string]string `json:"options"`
}

var (
	strong     = map[string]string{"consistency": "strong"}
	firstWrite = map[string]string{"consistency": "strong", "concurrency": "first-write"}
)

// send posts a value to the API.
func (s sidecar) send(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	return launcher.Do(s.client, req, out)
}

// get reads one key. If it does not exist, found is false and out is not changed.
func (s sidecar) get(ctx context.Context, key string, out any) (etag string, found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/state/statestore/"+key+"?consistency=strong",
		nil)
	if err != nil {
		return "", false, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return "", false, nil
	case http.StatusOK:
		return resp.Header.Get("ETag"), true, json.NewDecoder(resp.Body).Decode(out)
	}
	return "", false, fmt.Errorf("reading %s: %s", key, resp.Status)
}

// handle returns a handler for a function from JSON to JSON. It answers with status 502 if the function fails.
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
