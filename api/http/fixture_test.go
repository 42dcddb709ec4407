package http_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
)

// fixture is a Face over an apitest.World. A test that changes the world after newFixture must call refit, unless the
// test changes only the catalogues.
type fixture struct {
	*apitest.World
	config apihttp.Config
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{World: apitest.New(t)}
	f.refit()
	return f
}

// refit updates the configuration of the face from the world.
func (f *fixture) refit() {
	s, more := f.Services(), f.config
	f.config = apihttp.Config{
		App: f.App, State: s.State, Secrets: s.Secrets, Bindings: s.Bindings, Locks: s.Locks, Jobs: s.Jobs,
		Configurations: s.Configurations, Topics: s.Topics, Workflows: s.Workflows, Health: s.Health,
		Metadata: s.Metadata, Actors: s.Actors,
		Shutdown: s.Shutdown,
		Tokens:   f.Tokens, AllowedOrigins: more.AllowedOrigins, AnyHost: more.AnyHost, MaxBodySize: f.MaxBodySize,
		RequestTimeout: f.RequestTimeout,
		Logger:         s.Logger, Registerer: f.Metrics,
	}
}

// serve opens a listener on loopback and returns its address.
func (f *fixture) serve(t testing.TB) string {
	t.Helper()
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, face)
}

func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httpserver.New(httpserver.Config{Address: "127.0.0.1:0", Handler: h,
		Logger: slog.New(slog.DiscardHandler)})
	if err := server.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Errorf("closing the server: %v", err)
		}
	})
	return "http://" + server.Addr().String()
}

// do sends one request and returns the status, header and body of the answer.
func do(t testing.TB, method, url, body string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}
