package secretstorestest

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/internal/rest"
)

// Fake is an HTTPS server on loopback that imitates the service behind a store. A handler of the test implements the
// protocol of the service. Fake records all requests. Use Trouble to make requests fail.
type Fake struct {
	*httptest.Server

	mu       sync.Mutex
	requests []string
	trouble  func(http.ResponseWriter, *http.Request) bool
}

// NewFake starts a service over TLS. The service ends with the test.
func NewFake(t testing.TB, h http.Handler) *Fake {
	t.Helper()
	f := &Fake{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.RequestURI)
		trouble := f.trouble
		f.mu.Unlock()
		if trouble == nil || !trouble(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// Trouble sets a function that is called first for every request. If the function returns true, it has answered the
// request. Otherwise, the handler of NewFake answers. Trouble(nil) removes the function.
func (f *Fake) Trouble(answer func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble = answer
}

// Requests returns the requests since the previous call of Requests. Each element consists of the method and the
// request URI.
func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.requests
	f.requests = nil
	return out
}

// Transport returns a transport that trusts the service.
func (f *Fake) Transport() *http.Transport { return rest.Transport(rest.TLS(f.Pool())) }

// Pool returns the authority that signed the certificate of the service.
func (f *Fake) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(f.Certificate())
	return pool
}

// Answer returns a handler that writes body as a JSON response. It replaces {credentials} in body with the credentials
// of the request, to imitate a service that quotes them in errors.
func Answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var quoted []string
		for _, name := range []string{"Authorization", "X-Vault-Token", "X-Amz-Security-Token"} {
			quoted = append(quoted, r.Header.Get(name))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(strings.ReplaceAll(body, "{credentials}", strings.Join(quoted, " "))))
	}
}
