// Command shop runs one of the two applications of the compose demo. The application named "orders" keeps the
// customers' orders in the state store of its sidecar. The application named "web" receives requests from customers
// and forwards them to "orders" by service invocation. An application owns only its listener, and reaches everything
// else through its sidecar on loopback.
//
// With the argument health, the command checks the application that runs on this machine instead.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shop is one of the two applications of the demo, orders or web.
type shop struct {
	sidecar string // for example http://127.0.0.1:3500
	client  *http.Client
}

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("usage: shop orders|web|health"))
	}
	address := ":" + cmp.Or(os.Getenv("APP_PORT"), "8080")
	s := &shop{sidecar: "http://127.0.0.1:" + cmp.Or(os.Getenv("DAPR_HTTP_PORT"), "3500"),
		client: &http.Client{Timeout: 15 * time.Second}}
	if os.Args[1] == "health" {
		fail(s.probe("http://127.0.0.1" + address + "/healthz"))
		return
	}
	handler, err := s.handler(os.Args[1])
	fail(err)
	fail(serve(address, handler))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// serve serves requests until the process receives a signal.
func serve(address string, h http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return server.Shutdown(done)
	}
}

// handler returns the handler of the application with this name.
func (s *shop) handler(name string) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	switch name {
	case "orders":
		mux.HandleFunc("POST /orders/{id}", s.keep)
		mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			s.pass(w, r, http.MethodGet, "/v1.0/state/statestore/"+url.PathEscape(r.PathValue("id"))+
				"?consistency=strong", nil)
		})
	case "web":
		mux.HandleFunc("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			s.pass(w, r, r.Method, "/v1.0/invoke/orders/method/orders/"+url.PathEscape(r.PathValue("id")), r.Body)
		})
	default:
		return nil, fmt.Errorf("unknown application %q: give orders or web", name)
	}
	return mux, nil
}

// keep saves an order with strong consistency, so that an acknowledged order survives the loss of any one machine.
func (s *shop) keep(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil || !json.Valid(value) {
		http.Error(w, "an order must be JSON of at most 1 MiB", http.StatusBadRequest)
		return
	}
	body, err := json.Marshal([]map[string]any{{"key": r.PathValue("id"), "value": json.RawMessage(value),
		"options": map[string]string{"consistency": "strong"}}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.pass(w, r, http.MethodPost, "/v1.0/state/statestore", bytes.NewReader(body))
}

// pass sends a request to the sidecar and forwards its response.
func (s *shop) pass(w http.ResponseWriter, r *http.Request, method, path string, body io.Reader) {
	req, err := http.NewRequestWithContext(r.Context(), method, s.sidecar+path, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := s.client.Do(req)
	if err != nil {
		http.Error(w, "the sidecar does not answer", http.StatusBadGateway)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if kind := resp.Header.Get("Content-Type"); kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the customer may have gone away
}

// probe returns an error unless a request to the address gets the status 204. The container image uses it as its health
// check, because the image has no shell.
func (s *shop) probe(address string) error {
	resp, err := s.client.Get(address) //nolint:noctx // the client has a time-out
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s answers %s", address, resp.Status)
	}
	return nil
}
