package invoke_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
)

// partial is a body that returns the text of Reader. After that, it ends if complete is true, and otherwise blocks
// until it is closed.
type partial struct {
	io.Reader
	complete bool
	closed   chan struct{}
	once     sync.Once
	atEnd    bool
}

func (p *partial) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 || err == nil {
		return n, err
	}
	if !p.complete {
		<-p.closed
		return 0, io.ErrUnexpectedEOF
	}
	p.atEnd = true
	return 0, io.EOF
}

func (p *partial) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// busy is an application that answers the first call with the status 503.
type busy struct {
	*cluster
	first *http.Response
	calls int
}

func (b *busy) Carry(at *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	if b.calls++; b.calls == 1 {
		return invoke.Answer{Response: b.first}, nil
	}
	return b.cluster.Carry(at, in)
}

func TestInvoke_RetryDoesNotWaitForTheAnswerBefore(t *testing.T) {
	for name, c := range map[string]struct {
		length   int64
		complete bool
		wait     time.Duration
		atEnd    bool // the body is read to its end
	}{
		"short":                {4, true, 0, true},
		"short, stalls":        {5, false, time.Second, false},
		"long":                 {1 << 20, true, 0, false},
		"long, stalls":         {1 << 20, false, 0, false},
		"no length, stalls":    {-1, false, 0, false},
		"no length, completes": {-1, true, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policies := resiliency.NewPolicies()
				policies.Set(nil, &resiliency.Policy{Retry: &resiliency.Retry{Max: 1}})
				service, routes := callerWith(t, policies)
				body := &partial{Reader: strings.NewReader("text"), complete: c.complete, closed: make(chan struct{})}
				b := &busy{cluster: &cluster{nodes: []string{"n1"}}, first: &http.Response{StatusCode: 503,
					Header: http.Header{}, Body: body, ContentLength: c.length}}
				routes.Open(b, b)
				begun := time.Now()
				if err := call(t.Context(), service); err != nil || b.calls != 2 {
					t.Errorf("%d calls: %v", b.calls, err)
				}
				if waited := time.Since(begun); waited != c.wait || body.atEnd != c.atEnd {
					t.Errorf("waited %s, want %s; read to the end: %t", waited, c.wait, body.atEnd)
				}
				<-body.closed
			})
		})
	}
}
