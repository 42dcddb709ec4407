package appchannel

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

const (
	dialTimeout = 5 * time.Second

	// idleTimeout is how long a connection to the application may be idle before the node closes it. It is shorter than
	// the 5 s of many servers, because a request that is sent while the server closes the connection cannot be retried
	// safely.
	idleTimeout = 3 * time.Second

	idleConnections = 256
	continueTimeout = time.Second
)

// httpCarrier sends requests over HTTP.
type httpCarrier struct {
	channel   *Channel
	transport *http.Transport
	client    *atmostonce.Client // for HTTP/1.1 without TLS; nil = transport is used
	limits    atmostonce.Limits
	observer  Observer // nil = none
}

func protocols(http1, http2, h2c bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetHTTP2(http2)
	p.SetUnencryptedHTTP2(h2c)
	return p
}

func newHTTPCarrier(c *Channel, conf *tls.Config, speak *http.Protocols) *httpCarrier {
	dialer := &net.Dialer{Timeout: dialTimeout}
	h := &httpCarrier{channel: c, observer: c.opts.Observer, transport: atmostonce.Transport(&http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: conf, Protocols: speak,
		DisableCompression: true, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout,
		TLSHandshakeTimeout: dialTimeout, ExpectContinueTimeout: continueTimeout,
		MaxResponseHeaderBytes: c.opts.MaxHead,
	}), limits: atmostonce.Limits{Memory: c.opts.Memory}}
	if conf == nil && speak.HTTP1() {
		h.client = atmostonce.NewClient(h.transport, h.limits)
	}
	return h
}

func (h *httpCarrier) close() error {
	if h.client != nil {
		h.client.Close()
	}
	h.transport.CloseIdleConnections()
	return nil
}

// send sends r, at most once. See atmostonce.RoundTrip.
func (h *httpCarrier) send(r *http.Request) (answer *http.Response, sent bool, err error) {
	if h.client != nil {
		return h.client.RoundTrip(r)
	}
	return atmostonce.RoundTrip(h.transport, r, h.limits)
}

// RoundTrip sends r, at most once.
func (h *httpCarrier) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	answer, sent, err := h.send(r)
	if h.observer != nil {
		status, size := statusAndSize(answer)
		path := cmp.Or(r.URL.Path, r.URL.Opaque) // calls that are forwarded unchanged have their path in Opaque
		h.observer.Called(r.Method, path, status, r.ContentLength, size, time.Since(start))
	}
	switch {
	case err == nil:
		return answer, nil
	case sent:
		return nil, h.channel.unanswered(err)
	case r.Context().Err() != nil:
		return nil, h.channel.givenUp(r.Context())
	case strings.Contains(err.Error(), tooLongHTTP2):
		return nil, h.channel.unsendable(err)
	}
	return nil, h.channel.unreached(err)
}

// statusAndSize returns the status and the size of an answer for an Observer. The answer is nil if the application did
// not answer. The status is then 500.
func statusAndSize(answer *http.Response) (status int, size int64) {
	if answer == nil {
		return http.StatusInternalServerError, 0
	}
	return answer.StatusCode, answer.ContentLength
}

// probe requests the application's health path; 2xx is healthy.
func (h *httpCarrier) probe(ctx context.Context, c *Channel) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.scheme+"://"+c.target+c.opts.Health.Path, nil)
	if err != nil {
		return fault.New(fault.Invalid, "appchannel.probe", "the health path "+c.opts.Health.Path+" makes no URL")
	}
	start := time.Now()
	answer, _, err := h.send(r)
	if h.observer != nil {
		status, _ := statusAndSize(answer)
		h.observer.Probed(status, time.Since(start))
	}
	if err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "appchannel.probe", Msg: "GET " + c.opts.Health.Path +
			" failed", Err: rootCause(err)}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be reused
	_ = answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fault.New(fault.Unavailable, "appchannel.probe",
			fmt.Sprintf("GET %s answered %d", c.opts.Health.Path, answer.StatusCode))
	}
	return nil
}
