package demo

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/internal/testutil"
)

// fakeStore is the state of a node: it checks ETags, and writes all items of a request or none.
type fakeStore struct {
	mu     sync.Mutex
	values map[string]json.RawMessage // guarded by mu
	etags  map[string]int             // guarded by mu
	race   func(f *fakeStore)         // if set, called once before the next write, with mu held
}

func (f *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method == http.MethodGet {
		key := strings.TrimPrefix(r.URL.Path, "/v1.0/state/statestore/")
		if f.values[key] == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("ETag", strconv.Itoa(f.etags[key]))
		_, _ = w.Write(f.values[key])
		return
	}
	if f.race != nil {
		race := f.race
		f.race = nil
		race(f)
	}
	var items []struct {
		Key     string
		Value   json.RawMessage
		ETag    string
		Options struct{ Concurrency string }
	}
	if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, i := range items {
		if i.ETag != "" && i.ETag != strconv.Itoa(f.etags[i.Key]) ||
			i.ETag == "" && i.Options.Concurrency == "first-write" && f.values[i.Key] != nil {
			w.WriteHeader(http.StatusConflict)
			return
		}
	}
	for _, i := range items {
		f.set(i.Key, string(i.Value))
	}
}

func (f *fakeStore) set(key, value string) {
	f.values[key] = json.RawMessage(value)
	f.etags[key]++
}

// newStock returns the handler of stock with 10 cups of tea.
func newStock(t *testing.T) (*fakeStore, http.Handler) {
	t.Helper()
	f := &fakeStore{values: map[string]json.RawMessage{}, etags: map[string]int{}}
	f.set("tea", "10")
	node := httptest.NewServer(f)
	t.Cleanup(node.Close)
	mux := http.NewServeMux()
	sidecar{demokit.Sidecar{Base: node.URL + "/v1.0", Client: node.Client()}, "here"}.serveStock(mux)
	return f, mux
}

func ask(h http.Handler, path, body string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestStock_RepeatedOrderChangesNothing(t *testing.T) {
	_, h := newStock(t)
	const want = `{"order":"o","left":8,"by":"here"}`
	for range 2 {
		if code, body := ask(h, "/take", `{"id":"o","item":"tea","count":2}`); code != http.StatusOK || body != want {
			t.Errorf("%d %s", code, body)
		}
	}
	if code, body := ask(h, "/left", `{"item":"tea"}`); code != http.StatusOK || body != "8" {
		t.Errorf("left: %d %s", code, body)
	}
}

// The slower of two orders reads the count again.
func TestStock_ConcurrentOrdersBothCount(t *testing.T) {
	f, h := newStock(t)
	f.race = func(f *fakeStore) { f.set("tea", "7") }
	if code, body := ask(h, "/take", `{"id":"o","item":"tea","count":2}`); code != http.StatusOK ||
		body != `{"order":"o","left":5,"by":"here"}` {
		t.Errorf("%d %s", code, body)
	}
}

// Of two attempts of one order at two instances, one carries it out, and both return its receipt.
func TestStock_ConcurrentAttemptsCountOnce(t *testing.T) {
	f, h := newStock(t)
	f.race = func(f *fakeStore) {
		f.set("tea", "8")
		f.set("order-o", `{"order":"o","left":8,"by":"there"}`)
	}
	if code, body := ask(h, "/take", `{"id":"o","item":"tea","count":2}`); code != http.StatusOK ||
		body != `{"order":"o","left":8,"by":"there"}` || string(f.values["tea"]) != "8" {
		t.Errorf("%d %s, left %s", code, body, f.values["tea"])
	}
}

func TestStock_RefusesWhatItDoesNotHave(t *testing.T) {
	_, h := newStock(t)
	for _, body := range []string{`{"id":"o","item":"tea","count":11}`, `{"id":"o","item":"coal","count":1}`} {
		if code, text := ask(h, "/take", body); code != http.StatusBadGateway || !strings.Contains(text, "too few") {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if code, _ := ask(h, "/take", `{`); code != http.StatusBadRequest {
		t.Errorf("not JSON: %d", code)
	}
}

func TestAudit_FindsBooksThatDoNotBalance(t *testing.T) {
	for name, c := range map[string]struct {
		left, stored string
		fails        bool
	}{
		"balanced":                  {"9999", `[{"data":{"order":"o","left":1,"by":"s"}}]`, false},
		"carried out twice":         {"9998", `[{"data":{"order":"o","left":1,"by":"s"}}]`, true},
		"lost in stock":             {"10000", `[{"data":{"order":"o","left":1,"by":"s"}}]`, true},
		"lost in the store":         {"9999", `[{"key":"order-o"}]`, true},
		"another receipt was kept":  {"9999", `[{"data":{"order":"o","left":2,"by":"s"}}]`, true},
		"the node does not know it": {"9999", `[]`, true},
	} {
		t.Run(name, func(t *testing.T) {
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text := c.left
				if strings.HasSuffix(r.URL.Path, "/bulk") {
					text = c.stored
				}
				_, _ = io.WriteString(w, text)
			}))
			t.Cleanup(node.Close)
			n := launcher.Loopback("n1", "quorate", "", node.Listener.Addr().(*net.TCPAddr).Port, 0)
			d := demo{out: launcher.NewLines(io.Discard), cluster: &launcher.Cluster{Nodes: []*launcher.Node{n}}}
			d.books.receipt = map[string]receipt{"o": {Order: "o", Left: 1, By: "s"}}
			if err := d.audit(t.Context()); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
		})
	}
}

// The launcher sends a signal to the application, which ends the context.
func TestApp_EndsWithItsContext(t *testing.T) {
	t.Setenv("APP_PORT", "0")
	f := flag.NewFlagSet("app", flag.ContinueOnError)
	testutil.Must(t, f.Parse([]string{"orders"}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- App(f)(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestApp_ReportsAPortThatIsTaken(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Listener.Addr().String())
	testutil.Must(t, err)
	t.Setenv("APP_PORT", port)
	if err := serve(t.Context(), sidecar.serveOrders); err == nil {
		t.Error("no error")
	}
}

// TestDemo_BooksBalance runs make demo from start to end.
func TestDemo_BooksBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	var out testutil.Output
	d := demo{out: launcher.NewLines(&out), binary: labtest.Build(t, "cmd/quorate"),
		app: []string{labtest.Build(t, "cmd/lab"), AppWord}}
	err := d.run(t.Context())
	if t.Log(out.String()); err != nil {
		t.Fatal(err)
	}
	if len(d.books.receipt) < 100 || !strings.Contains(out.String(), "The books balance") {
		t.Errorf("%d orders were acknowledged", len(d.books.receipt))
	}
}
