package appchannel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// tokenHeader carries the token that the application checks.
const tokenHeader = "Dapr-Api-Token"

// RoundTrip sends r to the application and returns the answer, whatever its status. The URL of r must have only a path
// and a query. RoundTrip may change the header of r. The caller must close the body of the answer. Until then, the call
// counts towards MaxConcurrency. Errors:
//
//	unavailable    the application certainly did not receive the request
//	invalid        the request cannot be sent, for example because of a header
//	timeout        ctx or the body of r ended too early; the application did not receive the request
//	too_large      the body is too large for a gRPC application, or the headers are too long for the application. The
//	               application did not receive the request
//	corrupt        the answer was refused, because it does not fit the request or its headers exceed a limit
//	indeterminate  the application may have received the request, but its answer did not come or was not read
func (c *Channel) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.admit(r.Context()); err != nil {
		return nil, err
	}
	if c.opts.Token != "" {
		r.Header[tokenHeader] = []string{c.opts.Token}
	}
	r.URL.Scheme, r.URL.Host, r.Host = c.scheme, c.target, c.target
	answer, err := c.carry.RoundTrip(r)
	if err != nil {
		c.leave()
		return nil, err
	}
	answer.Body = c.held(answer.Body)
	return answer, nil
}

// load adds delta, which may be negative, to the number of calls in progress, and reports the sum to OnLoad.
func (c *Channel) load(delta int64) {
	n := c.inFlight.Add(delta)
	if c.opts.OnLoad != nil {
		c.opts.OnLoad(int(n))
	}
}

// admit begins a call. The caller must end the call with leave. If health probes are enabled and the application is
// not healthy, admit returns fault.Unavailable. It also returns the errors of enter.
func (c *Channel) admit(ctx context.Context) error {
	if ok, why := c.Healthy(); !ok && c.opts.Health.Enabled {
		return &fault.Error{Code: fault.Unavailable, Op: "appchannel.Call",
			Msg: why + ": app is not in a healthy state"}
	}
	c.load(1)
	err := c.enter(ctx)
	if err != nil {
		c.load(-1)
	}
	return err
}

// enter waits until fewer than MaxConcurrency calls are in progress. If ctx ends first, enter returns fault.Timeout.
func (c *Channel) enter(ctx context.Context) error {
	if c.gate == nil {
		return nil
	}
	select {
	case c.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "appchannel.Call", Err: context.Cause(ctx),
			Msg: fmt.Sprintf("%d calls to the application are under way and none ended in time",
				cap(c.gate)), Hint: "raise --app-max-concurrency"}
	}
}

func (c *Channel) leave() {
	c.load(-1)
	if c.gate != nil {
		<-c.gate
	}
}

// held wraps the body of an answer. When the wrapper is closed, it closes the body and ends the call, so that another
// call may start. If body is an io.Writer, the wrapper is also an io.Writer.
func (c *Channel) held(body io.ReadCloser) io.ReadCloser {
	h := &heldBody{ReadCloser: body, leave: c.leave}
	if w, ok := body.(io.Writer); ok {
		return &heldTunnel{heldBody: h, Writer: w}
	}
	return h
}

type heldBody struct {
	io.ReadCloser
	leave func()
	once  sync.Once
}

func (h *heldBody) Close() error {
	defer h.once.Do(h.leave)
	return h.ReadCloser.Close()
}

type heldTunnel struct {
	*heldBody
	io.Writer
}

// unreached returns the error of a request that never reached the application.
func (c *Channel) unreached(err error) error {
	c.refused()
	return &fault.Error{Code: fault.Unavailable, Op: "appchannel.Call", Msg: "the application at " + c.target +
		" cannot be reached", Err: rootCause(err)}
}

// Parts of the error texts of the client libraries for headers that are longer than the application accepts. The errors
// can be recognised only by their texts, because they have no type of their own.
const (
	tooLongHTTP2 = "request header list larger than peer's advertised limit"
	tooLongGRPC  = "header list size to send violates the maximum size"
)

// unsendable returns the error of a request that the client library refused with err before sending it. The error does
// not mean that the application is unhealthy. Another attempt with the same request would fail in the same way.
func (c *Channel) unsendable(err error) error {
	text := err.Error()
	if strings.Contains(text, tooLongHTTP2) || strings.Contains(text, tooLongGRPC) {
		return &fault.Error{Code: fault.TooLarge, Op: "appchannel.Call", Err: rootCause(err),
			Msg:  "the headers of the request are longer than the application at " + c.target + " accepts",
			Hint: "send shorter headers or metadata, or raise the limit of the application"}
	}
	return &fault.Error{Code: fault.Invalid, Op: "appchannel.Call", Err: rootCause(err),
		Msg: "the request cannot be sent to the application at " + c.target}
}

// givenUp returns the error of a call that ended before it reached the application.
func (c *Channel) givenUp(ctx context.Context) error {
	return &fault.Error{Code: fault.Timeout, Op: "appchannel.Call", Err: context.Cause(ctx),
		Msg: "the call ended before the application at " + c.target + " was reached"}
}

// unanswered returns the error of a request that the application may have received.
func (c *Channel) unanswered(err error) error {
	if _, refused := errors.AsType[*atmostonce.BadAnswer](err); refused {
		return &fault.Error{Code: fault.Corrupt, Op: "appchannel.Call", Err: rootCause(err),
			Msg: "the answer of the application at " + c.target + " was refused"}
	}
	if full, ok := fault.As(err); ok && full.Code == fault.Overloaded {
		return &fault.Error{Code: fault.Indeterminate, Op: "appchannel.Call", Hint: full.Hint,
			Msg: "the answer of the application at " + c.target + " was not read: " + full.Msg}
	}
	msg := "the application at " + c.target + " did not answer"
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		msg = "the call ended before the application at " + c.target + " answered"
	}
	return &fault.Error{Code: fault.Indeterminate, Op: "appchannel.Call", Msg: msg, Err: rootCause(err)}
}

// rootCause strips the layers of net/http, which repeat the address.
func rootCause(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("it closed the connection")
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return err
}
