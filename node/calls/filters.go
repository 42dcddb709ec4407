package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/internal/appchannel"
)

// SetFilters replaces the middleware for calls to the HTTP applications of this node. A call first passes access
// control, and then the filters in the given order.
func (c *Calls) SetFilters(filters []*middleware.Instance) { c.filters.Store(&filters) }

// filtered returns a channel that applies the middleware of SetFilters before it calls the application. It returns ch
// itself for a gRPC application, because the middleware applies only to HTTP.
func (c *Calls) filtered(ch *appchannel.Channel) invoke.Channel {
	if p := ch.Protocol(); p == appchannel.GRPC || p == appchannel.GRPCS {
		return ch
	}
	return filteredChannel{calls: c, next: ch}
}

// filteredChannel applies middleware before it calls an application.
type filteredChannel struct {
	calls *Calls
	next  invoke.Channel
}

// RoundTrip implements invoke.Channel. If the middleware refuses the call, the application does not receive it.
// RoundTrip then returns the response of the middleware.
func (f filteredChannel) RoundTrip(r *http.Request) (*http.Response, error) {
	filters := f.calls.filters.Load()
	if filters == nil {
		return f.next.RoundTrip(r)
	}
	for _, one := range *filters {
		if err := filter(one.Filter, r); err != nil {
			if refusal, ok := errors.AsType[*middleware.Refusal](err); ok {
				return refusalAnswer(r, refusal)
			}
			return nil, err
		}
	}
	return f.next.RoundTrip(r)
}

// filter applies the middleware f to a call. The path of a call is in URL.Opaque, which middleware does not read.
// Therefore f gets a copy of the URL with the path in RawPath. The call keeps its original URL unless f changes the
// copy.
func filter(f middleware.Filter, r *http.Request) error {
	sent := r.URL
	if sent.Opaque == "" {
		return f.Filter(r)
	}
	plain := *sent
	plain.RawPath, plain.Opaque = sent.Opaque, ""
	r.URL = &plain
	before := plain
	err := f.Filter(r)
	if r.URL == &plain && plain == before {
		r.URL = sent
	}
	return err
}

// refusalAnswer returns the answer of a middleware that refuses a call.
func refusalAnswer(r *http.Request, refusal *middleware.Refusal) (*http.Response, error) {
	body, err := json.Marshal(struct {
		Code    string `json:"errorCode"`
		Message string `json:"message"`
	}{refusal.Code, refusal.Message})
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, values := range refusal.Header {
		header[name] = values
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	return &http.Response{
		Status: strconv.Itoa(refusal.Status) + " " + http.StatusText(refusal.Status), StatusCode: refusal.Status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}, nil
}
