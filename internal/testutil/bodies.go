package testutil

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Bodies starts an HTTP server on 127.0.0.1 that answers every request with status 200. Before the answer, the server
// sends the body of the request to the returned channel. A request may wait until the test has received earlier bodies.
// The server stops at the end of the test.
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
