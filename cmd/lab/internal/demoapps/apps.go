package demoapps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/quorate/quorate/cmd/lab/internal/demonode"
)

// serve runs an application until ctx ends. Like a Dapr application, it listens on the port in APP_PORT, and calls
// the API on the port in DAPR_HTTP_PORT.
func serve(ctx context.Context, name string) error {
	s := sidecar{base: "http://127.0.0.1:" + os.Getenv("DAPR_HTTP_PORT") + "/v1.0", client: &http.Client{
		Timeout: demonode.AnswerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	}}
	mux := http.NewServeMux()
	switch name {
	case "orders":
		s.serveOrders(mux)
	case "stock":
		s.serveStock(mux)
	}
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("APP_PORT"), Handler: mux,
		ReadHeaderTimeout: demonode.AnswerTime}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// sidecar is the node beside an application, as the application uses it.
type sidecar struct {
	base   string
	client *http.Client
}

// invoke calls a method of another application by its id.
func (s sidecar) invoke(ctx context.Context, app, method string, in, out any) error {
	return s.send(ctx, http.MethodPost, "/invoke/"+app+"/method/"+method, in, out)
}

// save writes one key. If etag is nil, the write is unconditional. Otherwise the current value must have this ETag.
// An empty ETag means that the key must not exist. save returns false if another client has changed the value first.
func (s sidecar) save(ctx context.Context, key string, value any, etag *string) (bool, error) {
	item := map[string]any{"key": key, "value": value, "options": map[string]string{"consistency": "strong"}}
	if etag != nil {
		item["options"] = map[string]string{"consistency": "strong", "concurrency": "first-write"}
		if *etag != "" {
			item["etag"] = *etag
		}
	}
	err := s.send(ctx, http.MethodPost, "/state/statestore", []any{item}, nil)
	if r := (*demonode.Refused)(nil); errors.As(err, &r) && r.Status == http.StatusConflict {
		return false, nil
	}
	return err == nil, err
}

func (s sidecar) send(ctx context.Context, verb, path string, in, out any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, verb, s.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	return demonode.Do(s.client, req, out)
}

// get reads one key. If it does not exist, out is not changed and the ETag is empty.
func (s sidecar) get(ctx context.Context, key, consistency string, out any) (etag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		s.base+"/state/statestore/"+key+"?consistency="+consistency, nil)
	if err != nil {
		return "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return "", nil
	case http.StatusOK:
		return resp.Header.Get("ETag"), json.NewDecoder(resp.Body).Decode(out)
	}
	return "", fmt.Errorf("reading %s: %s", key, resp.Status)
}

// taken is the message that items for an order were taken from stock. The application "stock" sends it to the
// application "orders", and also returns it to its own caller.
type taken struct {
	Order string `json:"order"`
	Left  int    `json:"left"`
	By    string `json:"by"`
}

// serveOrders is the application orders: it stores orders and calls stock for each.
func (s sidecar) serveOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", handle(func(ctx context.Context, o order) (any, error) {
		r := receipt{Order: o.ID, State: "new"}
		if _, err := s.save(ctx, "order-"+o.ID, r, nil); err != nil {
			return nil, err
		}
		if err := s.invoke(ctx, "stock", "take", o, nil); err != nil {
			return nil, err
		}
		// Meanwhile stock has called taken, below. An eventual read sees what that wrote.
		_, err := s.get(ctx, "order-"+o.ID, "eventual", &r)
		return r, err
	}))
	mux.HandleFunc("POST /taken", handle(func(ctx context.Context, t taken) (any, error) {
		_, err := s.save(ctx, "order-"+t.Order, receipt{Order: t.Order, State: "taken", Left: t.Left, ServedBy: t.By},
			nil)
		return struct{}{}, err
	}))
}

// serveStock is the application stock. It does the same as deploy/examples/stock.py.
func (s sidecar) serveStock(mux *http.ServeMux) {
	mux.HandleFunc("POST /take", handle(func(ctx context.Context, o order) (any, error) {
		left, err := s.take(ctx, o)
		if err != nil {
			return nil, err
		}
		t := taken{Order: o.ID, Left: left, By: "stock in Go at " + os.Getenv("DEMO_NODE")}
		return t, s.invoke(ctx, "orders", "taken", t, nil)
	}))
	mux.HandleFunc("GET /left/{item}", func(w http.ResponseWriter, r *http.Request) {
		left := initial
		_, err := s.get(r.Context(), r.PathValue("item"), "strong", &left)
		answer(w, map[string]int{"left": left}, err)
	})
}

// take lowers the count of an item. The ETag prevents lost updates.
func (s sidecar) take(ctx context.Context, o order) (int, error) {
	for {
		left := initial
		etag, err := s.get(ctx, o.Item, "strong", &left)
		if err != nil {
			return 0, err
		}
		if left < o.Count {
			return 0, errors.New("too little " + o.Item + " is left")
		}
		ok, err := s.save(ctx, o.Item, left-o.Count, &etag)
		if ok || err != nil {
			return left - o.Count, err
		}
	}
}

// handle returns a handler for a function from JSON to JSON.
func handle[T any](f func(context.Context, T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in T
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), demonode.AnswerTime)
		defer cancel()
		out, err := f(ctx, in)
		answer(w, out, err)
	}
}

func answer(w http.ResponseWriter, out any, err error) {
	if err != nil {
		http.Error(w, strings.TrimSpace(err.Error()), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the caller may have gone away
}
