package invoke

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// Tracer records a span for each hop of a call. Implementations are safe for concurrent use.
type Tracer interface {
	// Start starts a span as a child of the traceparent in h. Without a traceparent it starts a new trace.
	Start(ctx context.Context, h http.Header, side SpanSide, name string) Span
}

// SpanSide is the side of a hop, caller or callee, that a span describes.
type SpanSide uint8

// The sides.
const (
	SpanCaller SpanSide = iota
	SpanCallee
)

// Span is one hop of a call.
type Span interface {
	Context() context.Context
	TraceID() string           // 32 hexadecimal digits
	Inject(h http.Header)      // adds the traceparent, so that the receiver's span is a child of this one
	End(*http.Response, error) // one of the arguments is nil
}

// endSpan ends the span of a call that was answered or has failed. For a gRPC answer whose status is in the trailers,
// the span ends when the body has been read or is closed.
func endSpan(s Span, answer *http.Response, err error) {
	if err != nil || answer.Header.Get("Grpc-Status") != "" ||
		!strings.HasPrefix(answer.Header.Get("Content-Type"), "application/grpc") {
		s.End(answer, err)
		return
	}
	body := &tracedBody{ReadCloser: answer.Body}
	body.end = func(err error) {
		body.once.Do(func() {
			if err != nil {
				s.End(nil, err)
			} else {
				s.End(answer, nil)
			}
		})
	}
	answer.Body = body
}

// tracedBody is the body of a gRPC answer. It ends a span when the body has been read or is closed.
type tracedBody struct {
	io.ReadCloser
	once sync.Once
	end  func(error)
}

// Read implements io.Reader.
func (b *tracedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.end(nil)
	} else if err != nil {
		b.end(err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *tracedBody) Close() error {
	b.end(fault.New(fault.Unavailable, "invoke.Close", "the answer was not read to its end"))
	return b.ReadCloser.Close()
}
