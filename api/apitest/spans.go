package apitest

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/quorate/quorate/api"
)

// Parent is the value of the header traceparent that Span.Inject sets, for every span.
const Parent = "00-11111111111111111111111111111111-2222222222222222-01"

// Spans records the spans of requests. If Off is true, StartRequest returns nil and records nothing.
type Spans struct {
	Off bool

	mu   sync.Mutex
	list []*Span
}

// Span is a recorded span.
type Span struct {
	Name, Parent string
	Attributes   map[string]string
	Status       int
	Err          error
	Ended        bool
}

// Exports implements api.RequestTracer.
func (s *Spans) Exports() bool { return true }

// StartRequest implements api.RequestTracer.
func (s *Spans) StartRequest(_ context.Context, h http.Header, name string) api.RequestSpan {
	if s.Off {
		return nil
	}
	one := &Span{Name: name, Parent: strings.Join(h["Traceparent"], ","), Attributes: map[string]string{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, one)
	return one
}

// Take returns the spans that were recorded after the last call of Take.
func (s *Spans) Take() []*Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	return list
}

// Set implements api.RequestSpan.
func (s *Span) Set(attributes ...string) {
	for i := 0; i < len(attributes); i += 2 {
		s.Attributes[attributes[i]] = attributes[i+1]
	}
}

// Inject implements api.RequestSpan.
func (s *Span) Inject(h http.Header) { h["Traceparent"] = []string{Parent} }

// End implements api.RequestSpan.
func (s *Span) End(status int, err error) { s.Status, s.Err, s.Ended = status, err, true }
