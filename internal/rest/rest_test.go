package rest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A server that sees that a call has ended may still write an answer, without a body.
func TestAnEmptyAnswerAtTheEndOfACallIsATimeout(t *testing.T) {
	for name, ended := range map[string]bool{"the call has ended": true, "the call goes on": false} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := rest.Client{Service: "the service", HTTP: roundTrip(func(r *http.Request) (*http.Response, error) {
			if ended {
				cancel()
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		})}
		want := fault.Corrupt
		if ended {
			want = fault.Timeout
		}
		var into any
		if err := c.Get(ctx, "http://127.0.0.1/", nil, &into); !fault.Is(err, want) {
			t.Errorf("%s: code %q, want %q: %v", name, fault.CodeOf(err), want, err)
		}
	}
}
