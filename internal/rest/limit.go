package rest

import (
	"io"
	"net/http"

	"github.com/quorate/quorate/internal/fault"
)

// Limit bounds every answer that comes through a transport to MaxAnswer bytes, for
// libraries that would read one without end. What is longer fails to be read.
func Limit(t http.RoundTripper) http.RoundTripper { return limited{t} }

type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, left: MaxAnswer}
	}
	return response, err
}

// CloseIdleConnections passes the call on.
func (l limited) CloseIdleConnections() {
	if t, ok := l.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fault.New(fault.TooLarge, "rest.Limit", "the answer is too large")
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
