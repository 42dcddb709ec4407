package rest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A server that sees that a call has ended may still write an answer, without a body.
func TestGet_EmptyAnswerAtEndOfCallIsTimeout(t *testing.T) {
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

func TestBackoff_DoublesUpToItsBound(t *testing.T) {
	for attempt, most := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 3: 400 * time.Millisecond,
		5: 1600 * time.Millisecond, 6: 2 * time.Second, 1000: 2 * time.Second,
	} {
		for range 100 {
			if d := rest.Backoff(attempt); d < most/2 || d > most {
				t.Fatalf("after attempt %d: %s, want from %s to %s", attempt, d, most/2, most)
			}
		}
	}
}
