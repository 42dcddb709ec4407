package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/admission"
)

func TestDeadline_MatchesPackageContext(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, d *deadline, cancel context.CancelFunc){
		"it passes while somebody waits": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			start := time.Now()
			<-d.Done()
			if took := time.Since(start); took != time.Second || !errors.Is(d.Err(), context.DeadlineExceeded) {
				t.Errorf("ended after %v with %v", took, d.Err())
			}
		},
		"it passes unseen": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			if d.Err() != nil {
				t.Errorf("ended with %v at once", d.Err())
			}
			<-time.After(time.Second)
			if !errors.Is(d.Err(), context.DeadlineExceeded) {
				t.Errorf("ended with %v", d.Err())
			}
			<-d.Done()
		},
		"its parent ends while somebody waits": func(t *testing.T, d *deadline, cancel context.CancelFunc) {
			go cancel()
			<-d.Done()
			if !errors.Is(d.Err(), context.Canceled) {
				t.Errorf("ended with %v", d.Err())
			}
		},
		"its parent ends unseen": func(t *testing.T, d *deadline, cancel context.CancelFunc) {
			cancel()
			if !errors.Is(d.Err(), context.Canceled) {
				t.Errorf("ended with %v", d.Err())
			}
		},
		"end ends it": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			done := d.Done()
			d.end()
			<-done
			if !errors.Is(d.Err(), context.Canceled) {
				t.Errorf("ended with %v", d.Err())
			}
		},
		"contexts below it end with it": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			below, stop := context.WithCancel(d)
			defer stop()
			<-below.Done()
			if !errors.Is(below.Err(), context.DeadlineExceeded) {
				t.Errorf("ended with %v", below.Err())
			}
		},
		"it has the values of its parent": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			for range 2 {
				if d.Value(testKey{}) != "value" {
					t.Error("a value was lost")
				}
				d.Done()
			}
		},
		"it tells when it ends": func(t *testing.T, d *deadline, _ context.CancelFunc) {
			if at, ok := d.Deadline(); !ok || time.Until(at) != time.Second {
				t.Errorf("ends in %v", time.Until(at))
			}
			sooner, cancel := context.WithTimeout(d.parent, time.Millisecond)
			defer cancel()
			d.parent = sooner
			if at, ok := d.Deadline(); !ok || time.Until(at) != time.Millisecond {
				t.Errorf("with a parent that ends sooner it ends in %v", time.Until(at))
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.WithValue(t.Context(), testKey{}, "value"))
				defer cancel()
				d := &deadline{parent: parent, at: time.Now().Add(time.Second)}
				defer d.end()
				test(t, d, cancel)
			})
		})
	}
}

type testKey struct{}

// Not parallel, because the test counts goroutines.
func TestDeadline_ChildContextsNeedNoGoroutine(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := &deadline{parent: parent, at: time.Now().Add(time.Hour)}
	defer d.end()
	before := runtime.NumGoroutine()
	for range 10 {
		_, stop := context.WithCancel(d)
		defer stop()
	}
	if after := runtime.NumGoroutine(); after >= before+10 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

// Reads of one key and saves have the same answers on the fast path and through the mux.
func TestDirect_AnswersLikeTheMux(t *testing.T) {
	t.Parallel()
	world := apitest.New(t)
	services := world.Services()
	face := func() *Face {
		f, err := New(Config{App: world.App, State: services.State, Logger: slog.New(slog.DiscardHandler),
			Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	fast, slow := face(), face()
	slow.get, slow.save = nil, nil // so that everything goes through the mux
	do := func(f *Face, method, target, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
		r.Host = "127.0.0.1:3500"
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		return w
	}
	store := world.Stores.List[0].Name
	if w := do(slow, "POST", "/v1.0/state/"+store,
		`[{"key":"a","value":1},{"key":"a/b","value":"x"},{"key":"a b","value":{"c":2}}]`); w.Code != 204 {
		t.Fatalf("the save: %d %s", w.Code, w.Body)
	}
	codes := map[int]int{}
	same := func(verb, target, body string) {
		t.Helper()
		got, want := do(fast, verb, target, body), do(slow, verb, target, body)
		g, w := got.Result().Header, want.Result().Header
		for _, name := range []string{headerETag, headerSession} { // these differ for every write
			g.Del(name)
			w.Del(name)
		}
		if diff := cmp.Diff(w, g); diff != "" || got.Code != want.Code || got.Body.String() != want.Body.String() {
			t.Errorf("%s: %d %s, through the mux %d %s; headers:\n%s", target, got.Code, got.Body, want.Code,
				want.Body, diff)
		}
		codes[got.Code]++
	}
	for _, path := range []string{store, store + "?consistency=strong", store + "/", "nowhere", "%7A", store + "%2F"} {
		same("POST", "/v1.0/state/"+path, `[{"key":"saved","value":1}]`)
		same("POST", "/v1.0/state/"+path, `[{]`)
	}
	for _, path := range []string{
		store + "/a", store + "/a/b", store + "/a%2Fb", store + "/a%20b", store + "/none", store +
			"/a?consistency=strong", store + "/a?consistency=odd",
		store + "/a/", store + "//", store + "/bulk", store + "/%zz", "nowhere/a", "no%2Fwhere/a", store + "/a%7C%7Cb",
	} {
		target := "/v1.0/state/" + path
		if _, err := url.ParseRequestURI(target); err != nil {
			continue // no server would receive this request
		}
		got, want := do(fast, "GET", target, ""), do(slow, "GET", target, "")
		if diff := cmp.Diff(want.Result().Header, got.Result().Header); diff != "" || got.Code != want.Code ||
			got.Body.String() != want.Body.String() {
			t.Errorf("%s: %d %s, through the mux %d %s; headers:\n%s", target, got.Code, got.Body, want.Code,
				want.Body, diff)
		}
		codes[got.Code]++
	}
	if codes[200] < 5 || codes[204] == 0 || codes[400] == 0 {
		t.Errorf("the requests do not show every kind of answer: %v", codes)
	}
}

// The fast path serves only calls that the mux would route to the same endpoint.
func TestDirect_TakesCalls(t *testing.T) {
	t.Parallel()
	f, err := New(Config{Invoke: &invoke.Service{}, Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"/v1.0/invoke/a/method/b":        true,
		"/v1.0/invoke/a/method/b%2F%2Fc": true,
		"/v1.0/invoke/a":                 true,
		"/v1.0/invoke/":                  false,
		"/v1.0/invoke":                   false,
		"/v1.0/invoke//a/method/b":       false,
		"/v1.0/invoke/a/method//b":       false,
		"/v1.0/%69nvoke/a/method/b":      false,
		"/V1.0/invoke/a/method/b":        false,
		"/v1.0/state/invoke":             false,
	} {
		for _, verb := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get",
			"SPY"} {
			r := httptest.NewRequestWithContext(t.Context(), verb, target, nil)
			known := verb != "get" && verb != "SPY"
			past := f.direct(r) == f.call
			if past != (want && known) {
				t.Errorf("%s %s takes the fast path: %t", verb, target, past)
			}
			path := r.URL.RawPath
			if path == "" {
				path = r.URL.Path
			}
			routed := chi.NewRouteContext()
			if past && (!f.mux.Match(routed, verb, path) || routed.RoutePattern() != "/v1.0/invoke/*") {
				t.Errorf("%s %s would be routed to %q", verb, target, routed.RoutePattern())
			}
		}
	}
}

// The fast path serves only requests that the mux would route to the same endpoint.
func TestDirect_TakesOnlyReadsOfOneKeyAndSaves(t *testing.T) {
	t.Parallel()
	f, err := New(Config{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"/v1.0/state/orders/a":             "GET",
		"/v1.0/state/orders/a/b":           "GET",
		"/v1.0/state/orders/a?x=1":         "GET",
		"/v1.0/state/orders/a%2Fb":         "GET",
		"/v1.0/state/or%2Fders/a":          "GET",
		"/v1.0/state/orders//":             "GET",
		"/v1.0/state/orders/bulk":          "GET",
		"/v1.0/state/orders/transaction":   "GET",
		"/v1.0/state/orders/":              "",
		"/v1.0/state/orders":               "POST",
		"/v1.0/state/orders?prefix=a/b":    "POST",
		"/v1.0/state//a":                   "",
		"/v1.0/state/":                     "",
		"/v1.0/state":                      "",
		"/v1.0/stateful/orders/a":          "",
		"/v1.0/secrets/vault/a":            "",
		"/v1.0/actors/t/1/state/a":         "",
		"//v1.0/state/orders/a":            "",
		"/V1.0/state/orders/a":             "",
		"/v1.0/%73tate/orders/a":           "",
		"/v1.0/invoke/a/method/v1.0/state": "",
	} {
		for _, verb := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			r := httptest.NewRequestWithContext(t.Context(), verb, target, nil)
			past := f.direct(r) != nil
			if past != (verb == want) {
				t.Errorf("%s %s takes the fast path: %t", verb, target, past)
			}
			path := r.URL.RawPath
			if path == "" {
				path = r.URL.Path
			}
			routed := chi.NewRouteContext()
			if past && (!f.mux.Match(routed, verb, path) || routed.RoutePattern() != f.direct(r).path) {
				t.Errorf("%s %s would be routed to %q", verb, target, routed.RoutePattern())
			}
		}
	}
	_, routes := allRoutes(t)
	for _, rt := range routes {
		for _, path := range paths(rt) {
			r := httptest.NewRequestWithContext(t.Context(), "GET",
				strings.NewReplacer("{", "", "}", "", "*", "k").Replace(path), nil)
			if slices.Contains(verbs(rt), "GET") && (f.direct(r) != nil) != rt.often {
				t.Errorf("the fast path and the mux disagree whether GET %s reads one key", path)
			}
			r.Method = "POST"
			if slices.Contains(verbs(rt), "POST") && (f.direct(r) != nil) != (rt.often && path == rt.path) {
				t.Errorf("the fast path and the mux disagree whether POST %s saves items", path)
			}
		}
	}
}

func TestCollapsed_KeepsKeys(t *testing.T) {
	for _, c := range []struct{ verb, path, want string }{
		{"GET", "//v1.0//lock//locks/a//b/", "/v1.0/lock/locks/a//b/"},
		{"GET", "/v1.0/lock/locks//a", "/v1.0/lock/locks//a"},
		{"POST", "/v1.0/lock/locks//renew", "/v1.0/lock/locks/renew"},
		{"GET", "//v1.0//state//orders/a//b", "/v1.0/state/orders/a//b"},
		{"POST", "/v1.0/state//orders//", "/v1.0/state/orders/"},
	} {
		if got := collapsed(c.verb, c.path); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.verb, c.path, got, c.want)
		}
	}
}

// lateBody is a body that ends after the budget has cut its transfer.
type lateBody struct{}

func (lateBody) Read([]byte) (int, error) {
	<-time.After(4 * admission.SlowAfter)
	return 0, io.EOF
}

// The end of a body arrives when the budget has just cut the transfer. net/http may have ended the context of the
// request then, so that the request must not begin.
func TestBody_CutAtTheEndIsOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := admission.New(admission.Options{Bytes: 8 << 20})
		c := &core{requests: budget, bodyLimit: DefaultMaxBodySize, timeout: time.Minute}
		p := &reply{ResponseWriter: httptest.NewRecorder(), start: time.Now(), share: budget.Share()}
		if !p.share.TryAdd(4 << 20) {
			t.Fatal("no room")
		}
		other := budget.Share()
		waited := make(chan error)
		go func() { waited <- other.Add(t.Context(), 4<<20) }()
		synctest.Wait()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", lateBody{})
		r.ContentLength = 10
		if err := c.readInto(new(buffer), p, r); !strings.Contains(fmt.Sprint(err), "too slowly") {
			t.Errorf("got %v", err)
		}
		p.share.Release()
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}
