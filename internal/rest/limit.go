package rest

import (
	"io"
	"net/http"

	"github.com/quorate/quorate/internal/fault"
)

// Limit returns a transport that limits the body of every answer to MaxAnswer bytes. Reading beyond the limit returns
// an error. Limit is for client libraries that do not limit answers themselves.
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

// CloseIdleConnections forwards the call.
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
