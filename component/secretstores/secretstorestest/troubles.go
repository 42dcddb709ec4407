package secretstorestest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// Service describes the failures of the service behind a store.
type Service struct {
	// Fake is the service. Open opens a store on it, which the suite closes.
	Fake *Fake
	Open func(t *testing.T) secretstores.Store
	// Name is a secret that exists.
	Name string
	// About distinguishes requests for secrets from others, such as those for access tokens. nil = all requests are
	// for secrets.
	About func(r *http.Request) bool
	// The documented answers of the service when it wants fewer calls, refuses the credentials, finds them expired,
	// does not know the secret, and cannot serve. If Throttled or Absent is nil, its tests are skipped. Without
	// Throttled, the test of a short failure is skipped too.
	Throttled, Denied, Expired, Absent, Down http.HandlerFunc
	// Confidential must not appear in any error: credentials and values.
	Confidential []string
}

// RunTroubles runs the tests about failures of a service that is reached over a network.
func RunTroubles(t *testing.T, s Service) {
	t.Helper()
	for name, test := range map[string]func(*troubled){
		"throttled for a moment":     (*troubled).throttledOnce,
		"throttled for long":         func(x *troubled) { x.fails(s.Throttled, fault.Overloaded) },
		"the credentials are denied": func(x *troubled) { x.fails(s.Denied, fault.Denied) },
		"the credentials expired":    func(x *troubled) { x.fails(s.Expired, fault.Denied) },
		"the secret is absent":       func(x *troubled) { x.fails(s.Absent, fault.NotFound) },
		"down for a moment":          (*troubled).downOnce,
		"down for long":              func(x *troubled) { x.fails(s.Down, fault.Unavailable) },
		"cut off":                    func(x *troubled) { x.fails(cut, fault.Unavailable) },
		"silent":                     (*troubled).silent,
		"away":                       (*troubled).away,
		"something else answers":     (*troubled).somethingElse,
		"an answer without end":      (*troubled).endless,
		"a large header":             func(x *troubled) { x.fails(header(1, 20_000), fault.Unavailable) },
		"many 1xx answers":           func(x *troubled) { x.fails(header(20, 1_000), fault.Unavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			if s.lacks(name) {
				t.Skip("the service does not fail this way")
			}
			x := &troubled{T: t, Service: s, store: s.Open(t)}
			t.Cleanup(func() {
				s.Fake.Trouble(nil)
				if err := x.store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			test(x)
		})
	}
}

func (s Service) lacks(test string) bool {
	return strings.HasPrefix(test, "throttled") && s.Throttled == nil || test == "the secret is absent" &&
		s.Absent == nil ||
		test == "down for a moment" && s.Throttled == nil
}

type troubled struct {
	*testing.T
	Service
	store secretstores.Store
}

// make sets the handler for the first requests for secrets. few is the number of these requests; 0 means all requests
// for secrets.
func (x *troubled) make(h http.HandlerFunc, few int64) {
	var count atomic.Int64
	x.Fake.Trouble(func(w http.ResponseWriter, r *http.Request) bool {
		if x.About != nil && !x.About(r) || few > 0 && count.Add(1) > few {
			return false
		}
		h(w, r)
		return true
	})
}

func (x *troubled) get(within time.Duration) error {
	ctx, cancel := context.WithTimeout(x.Context(), within)
	defer cancel()
	secret, err := x.store.Get(ctx, x.Name, nil)
	if err != nil && secret != nil {
		x.Errorf("Get = %v, %v", secret, err)
	}
	x.confidential(err)
	return err
}

func (x *troubled) confidential(err error) {
	x.Helper()
	if err == nil {
		return
	}
	for _, word := range x.Confidential {
		if strings.Contains(err.Error(), word) {
			x.Errorf("the error shows something confidential: %v", err)
		}
	}
}

func (x *troubled) fails(h http.HandlerFunc, code fault.Code) {
	x.make(h, 0)
	err := x.get(20 * time.Second)
	if !fault.Is(err, code) {
		x.Errorf("Get: code %q, want %q: %v", fault.CodeOf(err), code, err)
	}
	if code == fault.NotFound {
		return
	}
	if _, err := x.store.Bulk(x.Context(), nil); !fault.Is(err, code) {
		x.Errorf("Bulk: code %q, want %q: %v", fault.CodeOf(err), code, err)
	} else {
		x.confidential(err)
	}
}

func (x *troubled) throttledOnce() {
	x.make(x.Throttled, 1)
	if err := x.get(20 * time.Second); err != nil {
		x.Errorf("one refusal should be waited out: %v", err)
	}
}

func (x *troubled) downOnce() {
	x.make(x.Down, 1)
	if err := x.get(20 * time.Second); err != nil {
		x.Errorf("a short failure should be waited out: %v", err)
	}
}

func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// silent tests a service that accepts requests and never answers.
func (x *troubled) silent() {
	over := make(chan struct{})
	x.Cleanup(func() { close(over) })
	x.make(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}, 0)
	start := time.Now()
	err := x.get(300 * time.Millisecond)
	if !fault.Is(err, fault.Timeout) {
		x.Errorf("code %q: %v", fault.CodeOf(err), err)
	}
	if took := time.Since(start); took > 10*time.Second {
		x.Errorf("the call took %s", took)
	}
}

// away tests a service that closes each connection without an answer.
func (x *troubled) away() {
	x.make(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}, 0)
	if err := x.get(20 * time.Second); !fault.Is(err, fault.Unavailable) {
		x.Errorf("code %q: %v", fault.CodeOf(err), err)
	}
}

// somethingElse tests that a store rejects answers that cannot come from its service: a web page, an incomplete answer,
// a redirect and an unexpected status.
func (x *troubled) somethingElse() {
	for name, h := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>Welcome</html>"))
		},
		"half an answer": Answer(http.StatusOK, `{"data": {`),
		"a redirect":     http.RedirectHandler("https://elsewhere.invalid/", http.StatusFound).ServeHTTP,
		"a strange status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
		},
	} {
		x.make(h, 0)
		err := x.get(20 * time.Second)
		if code := fault.CodeOf(err); err == nil || code == fault.NotFound || code == fault.Timeout {
			x.Errorf("%s: code %q: %v", name, code, err)
		}
	}
}

func (x *troubled) endless() {
	x.make(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"data": "`))
		chunk := []byte(strings.Repeat("x", 1<<20))
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}, 0)
	if err := x.get(20 * time.Second); err == nil || fault.Is(err, fault.NotFound) {
		x.Errorf("code %q: %v", fault.CodeOf(err), err)
	}
}

// header returns a handler that sends the given number of responses with status 103 and then one with status 200. Each
// response has the given number of empty header fields. With this handler, a test can check that a client limits the
// headers of responses.
func header(answers, fields int) http.HandlerFunc {
	var many strings.Builder
	for n := range fields {
		many.WriteString("X" + strconv.Itoa(n) + ":\r\n")
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // the client may have closed it
		for range answers {
			_, _ = conn.Write([]byte("HTTP/1.1 103 Early Hints\r\n" + many.String() + "\r\n"))
		}
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n" + many.String() +
			"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"))
	}
}
