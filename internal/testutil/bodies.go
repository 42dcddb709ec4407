package testutil

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Bodies starts an HTTP server on 127.0.0.1. For each request, the server sends the body to the channel bodies and then
// answers with status 200. A request may wait until the test has received earlier bodies. The server ends with the
// test.
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
