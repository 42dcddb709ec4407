package actors

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// Headers of calls to the application.
const (
	headerReentrancy = "Dapr-Reentrancy-Id"
	headerEpoch      = "Quorate-Actor-Epoch"
)

// headerChain is the header that carries the id of the call chain to the node that hosts the actor. The node of the
// caller sets it, after it has verified that the call belongs to the chain.
const headerChain = "Quorate-Actor-Chain"

// maxConfig is the largest answer to GET /dapr/config, in bytes.
const maxConfig = 1 << 20

// httpApp is an application that serves the callbacks of actors over HTTP.
type httpApp struct {
	Channel
	options *Options
}

// escaped returns the path with the given segments, each of them escaped.
func escaped(parts ...string) string {
	path := ""
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// request makes a request to the application. The target has the path and the query.
func request(ctx context.Context, verb string, header http.Header, body []byte, target string) *http.Request {
	path, query, mark := strings.Cut(target, "?")
	r := &http.Request{Method: verb, URL: &url.URL{Opaque: path, RawQuery: query, ForceQuery: mark},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(body)), Body: http.NoBody}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return r.WithContext(ctx)
}

// read reads the whole answer of the application. As in Dapr, it accepts an answer that is shorter than its
// Content-Length. It returns fault.Indeterminate if reading fails, and fault.Corrupt if the answer has more than limit
// bytes.
func read(r *http.Response, limit int64) ([]byte, error) {
	defer r.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && r.ContentLength > 0:
	case err != nil:
		return nil, &fault.Error{Code: fault.Indeterminate, Op: "actors.Call",
			Msg: "the answer of the application was cut short", Err: err}
	case int64(len(b)) > limit:
		return nil, &fault.Error{Code: fault.Corrupt, Op: "actors.Call",
			Msg:  fmt.Sprintf("the answer of the actor is longer than %d bytes", limit),
			Hint: "raise --max-body-size"}
	}
	return b, nil
}

// Headers returns the headers of the request that delivers a turn to the application. They are the forwarded headers
// of the caller and the headers that the runtime adds.
func (t *Turn) Headers() http.Header {
	header := t.Header.Clone()
	if t.Callback == "" {
		header = invoke.ForwardHeader(t.Header)
		for _, name := range []string{"Content-Length", headerReentrancy, "Dapr-App-Id"} {
			delete(header, name)
		}
		header["Dapr-Caller-App-Id"] = []string{t.Caller.ID}
	}
	if t.Chain != "" {
		header[headerReentrancy] = []string{t.Chain}
	}
	header[headerEpoch] = []string{utoa(t.Epoch)}
	return header
}

// Take implements App.
func (a *httpApp) Take(ctx context.Context, c *Turn) (Answer, error) {
	target := escaped("actors", c.Actor.Type, c.Actor.ID, "method")
	if c.Callback != "" {
		target += escaped(c.Callback, c.Method)
	} else {
		target += "/" + c.Method
	}
	answer, err := a.RoundTrip(request(ctx, http.MethodPut, c.Headers(), c.Body, target))
	if err != nil {
		return Answer{}, err
	}
	body, err := read(answer, a.options.MaxAnswer)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Status: answer.StatusCode, Header: answer.Header, Body: body}, nil
}

// maxFields is the maximum number of headers of an answer.
const maxFields = atmostonce.DefaultMaxFields

// checked validates an answer of an application, and removes the headers that must not be forwarded. It returns
// fault.Corrupt if the answer has an impossible status or too many headers. If err is not nil, it returns err.
func checked(a Answer, err error) (Answer, error) {
	if err != nil {
		return Answer{}, err
	}
	if n := countFields(a.Header); n > maxFields || a.Status < 100 || a.Status > 999 {
		return Answer{}, &fault.Error{Code: fault.Corrupt, Op: "actors.Call", Msg: fmt.Sprintf(
			"the answer of the actor was refused: it has the status %d and %d headers, at most %d are allowed",
			a.Status, n, maxFields)}
	}
	invoke.CleanHeader(a.Header)
	delete(a.Header, "Content-Length")
	return a, nil
}

func countFields(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// drop notifies the application that an actor was deactivated, and returns an error if the application does not
// answer. It does nothing if the application was already notified or has never received a call for the actor.
func (h *Host) drop(ctx context.Context, a *activation) error {
	h.mu.Lock()
	dropped := a.dropped
	h.mu.Unlock()
	if dropped {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.settings.DrainTimeout)
	defer cancel()
	if err := h.application().Deactivate(ctx, a.key); err != nil {
		h.log.Debug("the application could not be informed that an actor is deactivated", "error", fault.Text(err))
		return &fault.Error{Code: fault.Unavailable, Op: "actors.Deactivate", Err: err,
			Msg: "the application does not answer that an earlier activation of the actor has ended"}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a.dropped = true
	if h.earlier != nil {
		if len(h.earlier) >= maxEarlier {
			clear(h.earlier) // these actors get another DELETE, which does no harm
		}
		h.earlier[a.key] = struct{}{}
	}
	return nil
}

// Deactivate implements App.
func (a *httpApp) Deactivate(ctx context.Context, key api.Actor) error {
	answer, err := a.RoundTrip(request(ctx, http.MethodDelete, http.Header{"User-Agent": {"quorate"}}, nil,
		escaped("actors", key.Type, key.ID)))
	if err == nil {
		_, _ = read(answer, maxConfig)
	}
	return err
}

// Config implements App. known is false if the application answers GET /dapr/config with a 4xx status or with 501. Some
// HTTP servers answer 501 if they have no handler for GET, for example the server of Python's standard library.
func (a *httpApp) Config(ctx context.Context) (c Config, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.options.PlaceTime)
	defer cancel()
	answer, err := a.RoundTrip(request(ctx, http.MethodGet, http.Header{"User-Agent": {"quorate"}}, nil,
		"/dapr/config"))
	if err != nil {
		return c, false, err
	}
	body, err := read(answer, maxConfig)
	switch {
	case err != nil:
		return c, false, err
	case answer.StatusCode == http.StatusOK:
		c, err = ParseConfig(body)
		return c, err == nil, err
	case answer.StatusCode >= 400 && answer.StatusCode < 500, answer.StatusCode == http.StatusNotImplemented:
		return c, false, nil
	}
	return c, false, fault.New(fault.Internal, "actors.Config", fmt.Sprintf("GET /dapr/config answered %d",
		answer.StatusCode))
}
