package http

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/middleware"
)

// Pipeline is the sequence of middleware through which requests pass before they are routed. It is safe for
// concurrent use. A nil *Pipeline accepts every request.
type Pipeline struct {
	expected bool
	filters  atomic.Pointer[[]*middleware.Instance]
}

// NewPipeline returns a Pipeline without middleware. If expected is true, requests wait until Set is called. After the
// request timeout, waiting requests are refused with 503.
func NewPipeline(expected bool) *Pipeline { return &Pipeline{expected: expected} }

// Set replaces the middleware. Requests pass the filters in the order of the slice.
func (p *Pipeline) Set(filters []*middleware.Instance) { p.filters.Store(&filters) }

// filter applies the pipeline to a request, and returns the error of the first filter that refuses. Health probes skip
// the pipeline.
func (f *Face) filter(r *http.Request) error {
	p := f.pipeline
	if p == nil || f.exempt[r.URL.Path] {
		return nil
	}
	filters := p.filters.Load()
	if filters == nil && p.expected {
		f.start.Wait(r.Context(), f.timeout)
		if filters = p.filters.Load(); filters == nil {
			return &middleware.Refusal{Status: statusNotNow, Code: api.CodeHealthNotReady,
				Message: "the node is starting: its middleware is not open yet"}
		}
	}
	if filters == nil {
		return nil
	}
	for _, one := range *filters {
		if err := one.Filter.Filter(r); err != nil {
			return err
		}
	}
	return nil
}

// dispatch serves a request that the guard has admitted. As in Dapr, a request that lacks a required token skips the
// pipeline, so that it does not count against a rate limit.
func (f *Face) dispatch(p *reply, r *http.Request) {
	if p.trusted { // otherwise only the error about the token follows, or a health probe
		if err := f.filter(r); err != nil {
			f.refuse(p, r, err)
			return
		}
	}
	if e := f.direct(r); e != nil {
		e.ServeHTTP(p, r)
		return
	}
	f.collapse(r)
	f.mux.ServeHTTP(p, r)
}

// refuse answers a request that a middleware refused.
func (f *Face) refuse(p *reply, r *http.Request, err error) {
	refusal, ok := errors.AsType[*middleware.Refusal](err)
	if !ok {
		f.fail(p, r, err)
		return
	}
	for name, values := range refusal.Header {
		p.Header()[name] = values
	}
	f.problem(p, r, refusal.Status, &api.Error{Code: refusal.Code, Message: refusal.Message})
}

// allowed returns an error if the Configuration resource disables the endpoint. The resource applies to the versions
// v1.0, v1.0-alpha1 and v1.0-beta1. Health probes and the OpenAPI description are always allowed.
func (e *endpoint) allowed() error {
	if e.open || !strings.HasPrefix(e.path, "/v1.0") {
		return nil
	}
	return e.face.surface.HTTP(e.path)
}

// levelOf returns the consistency that an answer reports, or "".
func levelOf(h http.Header) string {
	if v := h[headerConsistency]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// logCall logs a request that has been answered.
func (f *Face) logCall(p *reply, r *http.Request) {
	f.calls.HTTP(func() api.LoggedCall {
		return api.LoggedCall{App: f.app, Method: r.Method + " " + r.URL.Path,
			Endpoint: r.Method + " " + p.count.pattern, UserAgent: r.UserAgent(), Code: p.status, Size: p.sent,
			Health: f.exempt[r.URL.Path], Begun: p.start, Level: levelOf(p.Header()),
			Parent: header(r, headerTraceparent)}
	})
}
