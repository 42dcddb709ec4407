package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// handlerPath is the path of a read from the handler. It is as long as the path of a read from Quorate, so that both
// requests have the same size.
const handlerPath = quorateStore + "/k0?consistency=eventual"

// openHandler starts an HTTP handler with the chi router in a separate process. The handler answers every read with the
// same value from memory, without keys, consistency or disk. This is about the minimum cost of a read over HTTP in Go.
func openHandler(ctx context.Context, _ *settings, dir string) (store, error) {
	p, address, err := startSelf("handler", dir, func(address string) string { return address })
	if err != nil {
		return nil, err
	}
	h := &handler{processes: p, address: address}
	c := h.client()
	if err := until(ctx, func() error { return c.save(ctx, "", "ready") }); err != nil {
		defer p.end()
		return nil, p.failed(err)
	}
	return h, nil
}

// handler is the process of openHandler.
type handler struct {
	*processes
	address string
	conns   []client
}

func (h *handler) name() string  { return "handler" }
func (h *handler) about() string { return "a bare chi handler that answers with one value from memory" }

func (h *handler) clients(n int) ([]client, error) {
	for i := len(h.conns); i < n; i++ {
		h.conns = append(h.conns, h.client())
	}
	return h.conns[:n], nil
}

func (h *handler) client() *handlerClient { return &handlerClient{bare{address: h.address}} }

// handlerClient is a client of the handler. It ignores keys, because the handler has only one value.
type handlerClient struct{ bare bare }

func (c *handlerClient) save(ctx context.Context, _, value string) error {
	_, err := c.bare.fetch(ctx, http.MethodPost, quorateStore, []byte(value))
	return err
}

func (c *handlerClient) read(ctx context.Context, _ string, _ bool) (string, error) {
	body, err := c.bare.fetch(ctx, http.MethodGet, handlerPath, nil)
	return strings.Trim(string(body), `"`), err
}

func (c *handlerClient) lock(context.Context, string) error { return errors.ErrUnsupported }

// serveHandler is the main function of the process that openHandler starts.
func serveHandler(ctx context.Context, address string) error {
	return serve(ctx, address, handlerRoutes())
}

// handlerRoutes returns the handler: a POST sets the value, a GET returns it as JSON.
func handlerRoutes() http.Handler {
	var value atomic.Pointer[[]byte]
	r := chi.NewRouter()
	r.Post("/v1.0/state/{store}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = []byte(strconv.Quote(string(body)))
		value.Store(&body)
		w.WriteHeader(http.StatusNoContent)
	})
	r.Get("/v1.0/state/{store}/{key}", func(w http.ResponseWriter, _ *http.Request) {
		body := value.Load()
		if body == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h := w.Header()
		h["Content-Type"], h["Content-Length"] = []string{"application/json"}, []string{strconv.Itoa(len(*body))}
		_, _ = w.Write(*body)
	})
	return r
}

// serve serves HTTP at an address until ctx is done.
func serve(ctx context.Context, address string, h http.Handler) error {
	server := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}
