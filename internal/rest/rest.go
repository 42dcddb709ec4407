// Package rest calls JSON services over HTTP. It limits the size of answers and the number of retries, and converts
// failures to fault codes.
//
// It owns the conversion of HTTP statuses and broken connections to errors, which is the same for all services. Its
// errors never contain a credential, even if the answer of a service quotes one. It starts no goroutines of its own.
package rest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/quorate/quorate/internal/fault"
)

// The bounds of a call.
const (
	MaxAnswer  = 16 << 20 // bytes of a body
	MaxHeader  = 64 << 10 // bytes of the header of an answer, together with those of all 1xx answers before it
	attempts   = 3
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
	maxProblem = 300 // bytes quoted from a service's message
	minSecret  = 4   // bytes of a credential that is hidden; a shorter one is part of many words, and easily guessed
)

// Client calls one service. It is immutable and safe for concurrent use.
type Client struct {
	Service string // its name in messages: "the Vault server at https://vault:8200"
	HTTP    http.RoundTripper
	// Authorize adds credentials to a request. It returns true if it can renew them. If the service refuses such
	// credentials with status 401, Authorize is called once more with again set. nil = no credentials.
	Authorize func(ctx context.Context, h http.Header, again bool) (bool, error)
	// Problem extracts the service's message from the body of a failure; may be nil.
	Problem func(body []byte) string
	// Denied is the hint for refused credentials.
	Denied string
}

// Transport returns a transport to one service. It uses the given TLS settings, or the default settings if config is
// nil. It keeps a limited number of idle connections. A request fails if the header of its answer has more than
// MaxHeader bytes.
func Transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxResponseHeaderBytes: MaxHeader,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           16,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		ExpectContinueTimeout:  time.Second,
	}
}

// Get requests an address and decodes the JSON answer into result, which must be a pointer. If the service is
// overloaded, failing or unreachable, Get makes up to three attempts. If the service refuses credentials that can be
// renewed, Get tries again once with new ones.
//
// Get does not follow redirects, because the credentials are only for the configured address. Its errors are
// *fault.Error.
func (c *Client) Get(ctx context.Context, address string, header http.Header, result any) error {
	again := false
	for try := 1; ; try++ {
		answer, wait, err := c.once(ctx, address, header, again)
		switch {
		case err == nil:
			if err := json.Unmarshal(answer, result); err != nil {
				if ctx.Err() != nil { // a server that sees the call end may write an empty answer
					return c.broken(ctx, err)
				}
				return &fault.Error{Code: fault.Corrupt, Op: "rest.Get", Msg: c.Service + " gave an unexpected answer",
					Hint: "check that the address is that of such a service"}
			}
			return nil
		case errors.Is(err, errRefused) && !again:
			again = true
			continue
		case wait < 0 || try >= attempts || wait > 10*maxDelay || !Pause(ctx, max(Backoff(try), wait)):
			return withoutMark(err)
		}
	}
}

// errRefused is the cause of an error for status 401, if the credentials of the request can be renewed.
var errRefused = errors.New("refused")

// withoutMark removes errRefused, which callers must not see.
func withoutMark(err error) error {
	if e, ok := fault.As(err); ok && errors.Is(e.Err, errRefused) {
		e.Err = nil
	}
	return err
}

// once makes one attempt. wasRefused is true if the service refused the credentials of an earlier attempt. After an
// error, wait is the minimum delay before the next attempt. A negative wait means that another attempt would also fail.
func (c *Client) once(ctx context.Context, address string, header http.Header, wasRefused bool) (answer []byte,
	wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, -1, &fault.Error{Code: fault.Invalid, Op: "rest.Get", Msg: "the address of " + c.Service +
			" is not valid"}
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "quorate")
	for name, values := range header {
		request.Header[name] = values
	}
	credentials, useful := http.Header{}, false
	if c.Authorize != nil {
		if useful, err = c.Authorize(ctx, credentials, wasRefused); err != nil {
			return nil, -1, err
		}
	}
	for name, values := range credentials {
		request.Header[name] = values
	}
	response, err := c.HTTP.RoundTrip(request)
	if err != nil {
		return nil, 0, c.broken(ctx, err)
	}
	defer response.Body.Close() //nolint:errcheck // what matters has been read
	body, err := io.ReadAll(io.LimitReader(response.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, 0, c.broken(ctx, err)
	case len(body) > MaxAnswer:
		return nil, -1, fault.New(fault.TooLarge, "rest.Get",
			fmt.Sprintf("the answer of %s is larger than %d bytes", c.Service, MaxAnswer))
	case response.StatusCode == http.StatusOK:
		return body, 0, nil
	}
	return nil, retryAfter(response), c.failure(response, body, credentials, useful && !wasRefused)
}

// broken returns the error for a request that got no answer. If err is a *url.Error, broken keeps only its cause,
// without the URL.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &fault.Error{Code: fault.Timeout, Op: "rest.Get", Msg: c.Service + " did not answer in time",
			Err: ctx.Err()}
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	e := &fault.Error{Code: fault.Unavailable, Op: "rest.Get", Msg: c.Service + " cannot be reached", Err: err}
	var unknown *tls.CertificateVerificationError
	if errors.As(err, &unknown) {
		e.Hint = "name the authority that signed its certificate"
	}
	return e
}

// failure returns the error for an answer with a status other than 200. The error for status 401 wraps errRefused if
// renew is true, so that the caller tries again with new credentials.
func (c *Client) failure(response *http.Response, body []byte, credentials http.Header, renew bool) error {
	code, hint := classify(response.StatusCode)
	if code == fault.Denied {
		hint = c.Denied
	}
	e := &fault.Error{Code: code, Op: "rest.Get", Hint: hint,
		Msg: fmt.Sprintf("%s answered %d", c.Service, response.StatusCode)}
	if words := c.words(response, body, credentials); words != "" {
		e.Msg += ": " + words
	}
	if response.StatusCode == http.StatusUnauthorized && renew {
		e.Err = errRefused
	}
	return e
}

func classify(status int) (code fault.Code, hint string) {
	switch {
	case status == http.StatusNotFound:
		return fault.NotFound, ""
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault.Denied, ""
	case status == http.StatusTooManyRequests:
		return fault.Overloaded, "ask less often"
	case status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return fault.Timeout, ""
	case status >= 300 && status < 400:
		return fault.Unavailable, "give the address that it redirects to; redirects are not followed, because " +
			"credentials would be sent there too"
	case status >= 500:
		return fault.Unavailable, ""
	case status >= 400:
		return fault.Invalid, ""
	}
	return fault.Corrupt, "check that the address is that of such a service"
}

// words returns the service's own message, without the credentials of the request.
func (c *Client) words(response *http.Response, body []byte, credentials http.Header) string {
	if c.Problem == nil || !isJSON(response) {
		return ""
	}
	text := strings.Join(strings.Fields(c.Problem(body)), " ")
	for _, values := range credentials {
		for _, value := range values {
			for _, part := range append(strings.Fields(value), value) {
				if len(part) >= minSecret && part != "Bearer" && part != "Basic" { // not the name of the scheme
					text = strings.ReplaceAll(text, part, "***")
				}
			}
		}
	}
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return text
}

func isJSON(response *http.Response) bool {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// retryAfter returns the minimum delay before a retry, from the header Retry-After. Without this header, the delay is
// 0. A negative delay means that a retry would fail as well.
func retryAfter(response *http.Response) time.Duration {
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return -1
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Backoff returns how long to wait after a failed attempt. The first attempt has number 1. The time doubles with each
// attempt up to a maximum. It has jitter, so that many callers do not retry at the same moment.
func Backoff(attempt int) time.Duration {
	// The delay is random: from half of the interval to the whole interval.
	steps := backoff.ExponentialBackOff{InitialInterval: firstDelay * 3 / 4, RandomizationFactor: 1. / 3, Multiplier: 2,
		MaxInterval: maxDelay * 3 / 4}
	for range min(attempt, 8) - 1 {
		steps.NextBackOff()
	}
	return steps.NextBackOff()
}

// Pause waits for delay and returns true. It returns false if ctx ends first. If ctx has a deadline that would end the
// pause early, Pause returns false at once.
func Pause(ctx context.Context, delay time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
