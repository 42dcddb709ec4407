// Package demokit has the code that the demos share: a client of a node for the applications, and loops that wait for a
// condition or for the next second.
//
// It owns no resources, and does not depend on a demo. Serve and Each wait for their goroutines.
package demokit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

const pause = 50 * time.Millisecond // between two attempts

// Sidecar is a client of the node beside an application.
type Sidecar struct {
	Base   string // URL of the API, with its version
	Client *http.Client
}

// Beside returns a client of the node that belongs to this application. The environment variable DAPR_HTTP_PORT has the
// port of its API.
func Beside() Sidecar {
	return Sidecar{Base: "http://127.0.0.1:" + os.Getenv("DAPR_HTTP_PORT") + "/v1.0", Client: &http.Client{
		Timeout: launcher.AnswerTime, Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	}}
}

// Serve serves an application until ctx ends. It listens on the port in the environment variable APP_PORT, as
// applications of Dapr do.
func Serve(ctx context.Context, h http.Handler) error {
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("APP_PORT"), Handler: h,
		ReadHeaderTimeout: launcher.AnswerTime}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// Send sends a request and decodes the response into out, unless out is nil. The body of the request is the JSON
// encoding of the parameter in. If this parameter is nil, the body is empty.
func (s Sidecar) Send(ctx context.Context, verb, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, verb, s.Base+path, &body)
	if err != nil {
		return err
	}
	if err := launcher.Do(s.Client, req, out); err != nil {
		return fmt.Errorf("%s %s: %w", verb, path, err)
	}
	return nil
}

// statePath is the path of the state store.
const statePath = "/state/statestore"

// Get reads a key from the state store into out, and returns the ETag of the key. If the key does not exist, found is
// false and out is not changed.
func (s Sidecar) Get(ctx context.Context, key string, out any) (etag string, found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Base+statePath+"/"+key+"?consistency=strong", nil)
	if err != nil {
		return "", false, err
	}
	resp, err := s.Client.Do(req)
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

// Save saves items in one atomic write. If the ETag of an item does not match, it saves nothing, and returns false
// without an error.
func (s Sidecar) Save(ctx context.Context, items ...Item) (saved bool, err error) {
	err = s.Send(ctx, http.MethodPost, statePath, items, nil)
	if refused := (*launcher.Refused)(nil); errors.As(err, &refused) && refused.Status == http.StatusConflict {
		return false, nil
	}
	return err == nil, err
}

// Item is one key to save.
type Item struct {
	Key     string            `json:"key"`
	Value   any               `json:"value"`
	ETag    string            `json:"etag,omitempty"`
	Options map[string]string `json:"options"`
}

// Always returns an item that is saved without a condition. The write is acknowledged when the value is on the disks of
// a majority.
func Always(key string, value any) Item {
	return Item{Key: key, Value: value, Options: map[string]string{"consistency": "strong"}}
}

// If returns an item that is saved only if the current ETag of the key is etag. If etag is empty, the item is saved
// only if the key does not exist.
func If(key, etag string, value any) Item {
	return Item{Key: key, Value: value, ETag: etag,
		Options: map[string]string{"consistency": "strong", "concurrency": "first-write"}}
}

// Text returns v as JSON. v must consist of strings, numbers, lists and structs.
func Text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake of the demo
	}
	return string(out)
}

// Poll calls f repeatedly until f returns nil. If ctx ends first, Poll returns the last error of f.
func Poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Each calls f for every item, with at most n calls at a time. It returns all errors, joined.
func Each[T any](items []T, n int, f func(i int, item T) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(items))
	free := make(chan struct{}, n)
	for i, item := range items {
		free <- struct{}{}
		all.Go(func() {
			errs[i] = f(i, item)
			<-free
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Seconds calls f once per second, the given number of times, and then returns nil. If ctx ends first, Seconds returns
// the error of ctx.
func Seconds(ctx context.Context, seconds int, f func()) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range seconds {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
