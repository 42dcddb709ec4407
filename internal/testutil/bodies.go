package testutil

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Bodies starts an HTTP server on 127.0.0.1 that answers each request with status 200, and sends its body to the
// channel bodies. A request waits until the test receives its body. The server ends with the test.
func Bodies(t testing.TB) (url string, bodies <-chan string) {
	t.Helper()
	received := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		received <- string(b)
	}))
	t.Cleanup(s.Close)
	return s.URL, received
}
