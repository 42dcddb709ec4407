package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// healthServer answers like a node that has started and has no quorum.
func healthServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("dapr-api-token") != "":
			t.Error("a probe carries a token")
		case r.URL.Path == "/readyz/placed":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w,
				`{"errorCode":"ERR_HEALTH_NOT_READY","message":"n3 does not vote yet","ready":false}`)
		case r.URL.Path == "/readyz":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w,
				`{"errorCode":"ERR_HEALTH_NOT_READY","message":"group 0 has no leader","ready":false}`)
		case r.URL.Path == "/livez" || r.URL.Path == "/v1.0/healthz" || r.URL.Path == "/v1.0/healthz/outbound":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestHealth_ExitCode(t *testing.T) {
	c, s := newConsole(t), healthServer(t)
	for _, args := range [][]string{nil, {"--live"}, {"--outbound"}} {
		r := c.run(append([]string{"health", "--address", s.URL}, args...)...)
		if r.code != 0 || !strings.Contains(r.stdout, "is fine") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := c.run("health", "--address", s.URL, "--ready"); r.code != 1 ||
		!strings.Contains(r.stderr, "group 0 has no leader") {
		t.Errorf("not ready: %+v", r)
	}
	if r := c.run("health", "--address", s.URL, "--placed"); r.code != 1 ||
		!strings.Contains(r.stderr, "n3 does not vote yet") {
		t.Errorf("not placed: %+v", r)
	}
	if r := c.run("health", "--ready", "--outbound"); r.code == 0 {
		t.Errorf("two checks at once: %+v", r)
	}
	s.Close()
	if r := c.run("health", "--address", s.URL); r.code != 1 ||
		!strings.Contains(r.stderr, "no node listens at "+s.URL) {
		t.Errorf("no node: %+v", r)
	}
}

func TestHealth_JSONNamesTheEndpoint(t *testing.T) {
	c, s := newConsole(t), healthServer(t)
	var out struct {
		Healthy bool
		Path    string
	}
	r := c.run("health", "--json", "--address", s.URL)
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || !out.Healthy || out.Path != "/v1.0/healthz" {
		t.Errorf("%+v: %v", r, err)
	}
}
