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

// TestGet_EmptyAnswerAtEndOfCallIsTimeout lets a server answer without a body when the call has ended, as some servers
// do.
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

// TestGet_HidesCredentialsInMessages checks the message of a service that repeats credentials. A credential of one or
// two letters is part of other words, so it is not hidden.
func TestGet_HidesCredentialsInMessages(t *testing.T) {
	for credential, want := range map[string]string{
		"Bearer root":       "a Bearer token: *** is unknown",
		"Bearer long-token": "a Bearer token: *** is unknown",
		"Bearer ok":         "a Bearer token: ok is unknown",
		"root":              "a Bearer token: *** is unknown",
	} {
		message := `{"error":"a Bearer token: ` + strings.TrimPrefix(credential, "Bearer ") + ` is unknown"}`
		c := rest.Client{Service: "the service",
			HTTP: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusForbidden, Request: r,
					Header: http.Header{"Content-Type": {"application/json"}},
					Body:   io.NopCloser(strings.NewReader(message))}, nil
			}),
			Authorize: func(_ context.Context, h http.Header, _ bool) (bool, error) {
				h.Set("Authorization", credential)
				return false, nil
			},
			Problem: func(body []byte) string { return string(body[len(`{"error":"`) : len(body)-2]) }}
		var into any
		if err := c.Get(t.Context(), "http://127.0.0.1/", nil, &into); !strings.HasSuffix(fault.Text(err), want) {
			t.Errorf("%s: %v, want %q", credential, err, want)
		}
	}
}
