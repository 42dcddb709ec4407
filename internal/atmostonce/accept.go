package atmostonce

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// informationalKey is the key of a context for the function that WithInformational sets.
type informationalKey struct{}

// WithInformational returns a context that carries f. For a request with this context, RoundTrip calls f with each
// informational (1xx) answer before it returns the final answer. If f returns an error, the request fails with this
// error.
func WithInformational(ctx context.Context, f func(code int, header http.Header) error) context.Context {
	return context.WithValue(ctx, informationalKey{}, f)
}

// informational passes an informational answer to the function that WithInformational has set.
func informational(ctx context.Context, code int, header http.Header) error {
	if code == http.StatusSwitchingProtocols { // net/http reports 101 as informational over HTTP/2
		return bad("the server switches the protocol of an HTTP/2 connection")
	}
	if f, ok := ctx.Value(informationalKey{}).(func(int, http.Header) error); ok {
		return f(code, header)
	}
	return nil
}

// restore puts the recorded values of Connection back into the header of an answer, if net/http has removed them.
func (h *head) restore(header http.Header) {
	if len(header["Connection"]) == 0 && len(h.connection) > 0 {
		header["Connection"] = h.connection
	}
}

// check returns an error if an answer does not fit its request. It also removes parts that net/http may leave in an
// answer: the body of a 204 or a 304, and the header Content-Length of a 204.
func check(r *http.Request, a *http.Response) error {
	switch {
	case a.StatusCode < 100 || a.StatusCode > 999:
		return bad("the status of the answer is no HTTP status")
	case a.StatusCode == http.StatusSwitchingProtocols:
		return checkSwitch(r, a)
	case a.StatusCode == http.StatusNoContent || a.StatusCode == http.StatusNotModified:
		if a.StatusCode == http.StatusNoContent {
			delete(a.Header, "Content-Length")
		}
		if a.Body != http.NoBody { // only over HTTP/2
			_ = a.Body.Close() // the error of Close does not matter
			a.Body, a.ContentLength = http.NoBody, 0
		}
	}
	return checkLength(a)
}

// checkLength returns an error if the header Content-Length is repeated or is no number, because implementations
// interpret such a header differently. net/http checks the header only for HTTP/1.
func checkLength(a *http.Response) error {
	switch values := a.Header["Content-Length"]; len(values) {
	case 0:
		return nil
	case 1:
		if _, err := strconv.ParseUint(values[0], 10, 63); err == nil {
			return nil
		}
		return bad("the Content-Length of the answer is no number")
	default:
		return bad("the answer has several headers Content-Length")
	}
}

// checkSwitch checks an answer that switches the protocol of the connection. It returns an error unless the request
// names the new protocol in its header Upgrade. After a switch, the bytes of the caller pass unchecked.
func checkSwitch(r *http.Request, a *http.Response) error {
	if !hasToken(r.Header["Connection"], "upgrade") || len(r.Header["Upgrade"]) == 0 {
		return bad("the server switches the protocol, which the request did not ask for")
	}
	to, connection := a.Header["Upgrade"], a.Header["Connection"]
	_, tunnel := a.Body.(io.Writer)
	switch {
	case a.Header.Get("Upgrade") == "" || !hasToken(connection, "upgrade"):
		return bad("the server switches the protocol, but does not name the new one")
	case !tunnel || hasToken(connection, "close"):
		return bad("the server switches the protocol, but closes the connection")
	}
	for _, list := range to {
		for protocol := range strings.SplitSeq(list, ",") {
			if !hasToken(r.Header["Upgrade"], strings.TrimSpace(protocol)) {
				return bad("the server switches to another protocol than the one that was requested")
			}
		}
	}
	return nil
}

func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for t := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// body is the body of an answer. It limits the number of trailers. When it has been read or closed, it releases the
// memory that was acquired for the head of the answer.
type body struct {
	io.ReadCloser
	answer  *http.Response
	limit   int    // maximum number of trailers
	release func() // may be called several times
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.release()
	}
	if errors.Is(err, io.EOF) {
		err = checkTrailer(b.answer, b.limit, err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// checkTrailer returns an error if an answer has too many trailers, and otherwise err.
func checkTrailer(a *http.Response, limit int, err error) error {
	if n, _ := measure(a.Trailer); n > limit {
		return bad("the answer has more than %d trailers", limit)
	}
	return err
}

// writableBody is the body of an answer that has switched the protocol of the connection.
type writableBody struct {
	*body
	io.Writer
}
