package rest

import (
	"io"
	"net/http"

	"github.com/quorate/quorate/internal/fault"
)

// Limit returns a transport that limits the body of every answer to MaxAnswer bytes. If a body is longer, reading it
// returns an error. Limit is for client libraries that do not limit answers themselves.
func Limit(t http.RoundTripper) http.RoundTripper { return LimitTo(t, MaxAnswer) }

// LimitTo is Limit with a limit of the given number of bytes.
func LimitTo(t http.RoundTripper, bytes int64) http.RoundTripper { return limited{t, bytes} }

type limited struct {
	http.RoundTripper
	bytes int64
}

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, left: l.bytes}
	}
	return response, err
}

// CloseIdleConnections closes the idle connections of the wrapped transport.
func (l limited) CloseIdleConnections() {
	if t, ok := l.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// LimitBody limits a body to MaxAnswer bytes. It is for client libraries that do not accept a transport.
func LimitBody(body io.ReadCloser) io.ReadCloser {
	return &limitedBody{ReadCloser: body, left: MaxAnswer}
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)]) // one more byte shows that the body is too long
	if int64(n) > b.left {
		n, err = int(b.left), fault.New(fault.TooLarge, "rest.Limit", "the answer is too large")
	}
	b.left -= int64(n)
	return n, err
}
