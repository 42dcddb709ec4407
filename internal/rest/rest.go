// Package rest asks JSON services over HTTP: bounded answers, few and polite repetitions,
// failures as fault codes.
//
// It owns how statuses and broken connections are understood. It must never know a
// particular service. What it says about a failure never holds a credential: the values
// that authorize a request are cut out of whatever a service says. It starts no
// goroutines of its own.
package rest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// The bounds of a call.
const (
	MaxAnswer  = 16 << 20 // bytes
	attempts   = 3
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
	maxProblem = 300 // bytes of a service's own words
)

// Client asks one service. It is immutable and safe for concurrent use.
type Client struct {
	Service string // what it is, for messages: "the Vault server at https://vault:8200"
	HTTP    http.RoundTripper
	// Authorize adds credentials to a request. It is asked again, with again set, if the
	// service does not accept them; it answers false where trying again is of no use. nil = none needed.
	Authorize func(ctx context.Context, h http.Header, again bool) (bool, error)
	// Problem finds the service's own words in the body of a failure; may be nil.
	Problem func(body []byte) string
	// Denied is a hint for whoever has to mend refused credentials.
	Denied string
}

// Transport returns a transport that speaks to one service with the given TLS settings
// (nil = the system's authorities) and bounded connections.
func Transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   5 * time.Second,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          16,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
	}
}

// Get reads the JSON at an address into a value. Redirects are not followed: credentials
// belong to the address that was configured. A service that is overloaded or away for a
// moment is asked up to three times, within the time of ctx. Errors are *fault.Error.
func (c *Client) Get(ctx context.Context, address string, header http.Header, into any) error {
	again := false
	for try := 1; ; try++ {
		answer, wait, err := c.once(ctx, address, header, again)
		switch {
		case err == nil:
			if err := json.Unmarshal(answer, into); err != nil {
				if ctx.Err() != nil { // a server that saw the call end may have written an empty answer
					return c.broken(ctx, err)
				}
				return &fault.Error{Code: fault.Corrupt, Op: "rest.Get", Msg: c.Service + " answered something else than was expected",
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

// errRefused marks a 401 to a request with credentials that may be renewed.
var errRefused = errors.New("refused")

// withoutMark drops the mark, which means nothing outside.
func withoutMark(err error) error {
	if e, ok := fault.As(err); ok && errors.Is(e.Err, errRefused) {
		e.Err = nil
	}
	return err
}

// once makes one attempt. wait tells how long to leave the service alone before the next:
// 0 = as long as seems right, negative = there is no use in one.
func (c *Client) once(ctx context.Context, address string, header http.Header, again bool) (answer []byte, wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, -1, &fault.Error{Code: fault.Invalid, Op: "rest.Get", Msg: "the address of " + c.Service + " is not valid"}
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "quorate")
	for name, values := range header {
		request.Header[name] = values
	}
	credentials, useful := http.Header{}, false
	if c.Authorize != nil {
		if useful, err = c.Authorize(ctx, credentials, again); err != nil {
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
		return nil, -1, fault.New(fault.TooLarge, "rest.Get", fmt.Sprintf("the answer of %s is larger than %d bytes", c.Service, MaxAnswer))
	case response.StatusCode == http.StatusOK:
		return body, 0, nil
	}
	return nil, retryAfter(response), c.failure(response, body, credentials, useful && !again)
}

// broken words a connection that did not give an answer. Addresses hold no credentials,
// but a library may put anything into its errors, so only their innermost words are shown.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &fault.Error{Code: fault.Timeout, Op: "rest.Get", Msg: c.Service + " did not answer in time", Err: ctx.Err()}
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

// failure turns a status into an error.
func (c *Client) failure(response *http.Response, body []byte, credentials http.Header, renew bool) error {
	code, hint := classify(response.StatusCode)
	if code == fault.Denied {
		hint = c.Denied
	}
	e := &fault.Error{Code: code, Op: "rest.Get", Hint: hint, Msg: fmt.Sprintf("%s answered %d", c.Service, response.StatusCode)}
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
		return fault.Unavailable, "give the address that it redirects to; redirects are not followed, because credentials would go along"
	case status >= 500:
		return fault.Unavailable, ""
	case status >= 400:
		return fault.Invalid, ""
	}
	return fault.Corrupt, "check that the address is that of such a service"
}

// words are what the service says itself, without the credentials of the request.
func (c *Client) words(response *http.Response, body []byte, credentials http.Header) string {
	if c.Problem == nil || !isJSON(response) {
		return ""
	}
	text := strings.Join(strings.Fields(c.Problem(body)), " ")
	for _, values := range credentials {
		for _, value := range values {
			for _, part := range append(strings.Fields(value), value) {
				if len(part) > len("Bearer") {
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

// retryAfter tells whether and when it is worth trying again.
func retryAfter(response *http.Response) time.Duration {
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return -1
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Backoff is how long to leave a service alone after a failed try, the first being 1: it
// doubles with each, and chance spreads callers apart.
func Backoff(try int) time.Duration {
	delay := min(firstDelay<<min(max(try-1, 0), 8), maxDelay)
	return delay/2 + rand.N(delay/2+1)
}

// Pause waits for delay and reports true, unless ctx ends before. If its deadline is nearer
// than that, there is no use in waiting at all.
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
