package vault_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/hashicorp/vault"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "hvs.CAESIJtheToken"

// server starts a server that imitates the KV secrets engine, version 2, of Vault.
func server(t *testing.T) *secretstorestest.Fake {
	found := func(data, version string) http.HandlerFunc {
		return secretstorestest.Answer(http.StatusOK,
			`{"request_id":"e5d3","lease_id":"","renewable":false,"lease_duration":0,"data":{"data":`+data+
				`,"metadata":{"created_time":"2018-03-22T02:24:06.945319214Z","custom_metadata":null,`+
				`"deletion_time":"","destroyed":false,"version":`+version+`}},"wrap_info":null,`+
				`"warnings":null,"auth":null}`)
	}
	none := secretstorestest.Answer(http.StatusNotFound, `{"errors":[]}`)
	paths := map[string]http.HandlerFunc{
		"/v1/kv/team/data/quorate/db": found(`{"user":"root","password":"hunter2","port":5432,`+
			`"tls":true,"hosts":["a","b"],"none":null}`, "3"),
		"/v1/kv/team/data/quorate/db?version=1": found(`{"password":"older"}`, "1"),
		"/v1/kv/team/data/quorate/web/a%20b":    found(`{"key":"v"}`, "1"),
		"/v1/kv/team/data/quorate/web/deep/er":  found(`{}`, "1"),
		"/v1/kv/team/data/quorate/gone": secretstorestest.Answer(http.StatusNotFound,
			`{"data":{"data":null,"metadata":{"deletion_time":"2024-01-01T00:00:00Z","destroyed":false,"version":2}}}`),
		"/v1/kv/team/metadata/quorate?list=true": secretstorestest.Answer(http.StatusOK,
			`{"data":{"keys":["db","gone","web/"]}}`),
		"/v1/kv/team/metadata/quorate/web?list=true": secretstorestest.Answer(http.StatusOK,
			`{"data":{"keys":["a b","deep/"]}}`),
		"/v1/kv/team/metadata/quorate/web/deep?list=true": secretstorestest.Answer(http.StatusOK,
			`{"data":{"keys":["er"]}}`),
	}
	return secretstorestest.NewFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch h, ok := paths[r.RequestURI]; {
		case r.Header.Get("X-Vault-Token") != token:
			secretstorestest.Answer(http.StatusForbidden, `{"errors":["permission denied"]}`)(w, r)
		case r.Header.Get("X-Vault-Request") != "true" || r.Header.Get("X-Vault-Namespace") != "ns1":
			secretstorestest.Answer(http.StatusPreconditionFailed, `{"errors":["missing required header"]}`)(w, r)
		case ok:
			h(w, r)
		default:
			none(w, r)
		}
	}))
}

func options(f *secretstorestest.Fake) vault.Options {
	return vault.Options{Address: f.URL + "/", Token: token, Namespace: "ns1", Engine: "kv/team", Prefix: "quorate",
		Transport: f.Transport()}
}

func open(t *testing.T, o vault.Options) *vault.Store {
	t.Helper()
	s, err := vault.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func secrets() map[string]map[string]string {
	return map[string]map[string]string{
		"db": {"user": "root", "password": "hunter2", "port": "5432", "tls": "true", "hosts": `["a","b"]`,
			"none": "null"},
		"web/a b":     {"key": "v"},
		"web/deep/er": {},
	}
}

func TestStore_Conformance(t *testing.T) {
	f := server(t)
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store { return open(t, options(f)) },
		secretstorestest.Options{
			Secrets: secrets(), Absent: "none",
			Twins: []string{"DB", "web//a b", "web/./a b", "web/../db", "/db", "db/", "web/a%20b"},
		})
}

func TestRequests_MatchDocumentation(t *testing.T) {
	f := server(t)
	s := open(t, options(f))
	if _, err := s.Get(t.Context(), "web/a b", nil); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), "db", map[string]string{"version_id": "1"})
	if diff := cmp.Diff(map[string]string{"password": "older"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := s.Get(t.Context(), "gone", nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a deleted secret: %v", err)
	}
	if _, err := s.Bulk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	requests := f.Requests()
	want := []string{
		"GET /v1/kv/team/data/quorate/web/a%20b", "GET /v1/kv/team/data/quorate/db?version=1",
		"GET /v1/kv/team/data/quorate/gone",
		"GET /v1/kv/team/metadata/quorate?list=true", "GET /v1/kv/team/metadata/quorate/web?list=true",
		"GET /v1/kv/team/metadata/quorate/web/deep?list=true",
	}
	if diff := cmp.Diff(want, requests[:len(want)]); diff != "" || len(requests) != len(want)+4 {
		t.Errorf("%d requests (-want +got)\n%s", len(requests), diff)
	}
	for _, version := range []string{"x", "-1", "0", "1&x=y"} {
		if _, err := s.Get(t.Context(), "db", map[string]string{"version_id": version}); !fault.Is(err, fault.Invalid) {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestFailures_Server(t *testing.T) {
	f := server(t)
	said := func(status int, words string) http.HandlerFunc {
		return secretstorestest.Answer(status, `{"errors":["`+words+` {credentials}"]}`)
	}
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: f, Open: func(t *testing.T) secretstores.Store { return open(t, options(f)) }, Name: "db",
		Throttled:    said(http.StatusTooManyRequests, "request path kv: rate limit quota exceeded"),
		Denied:       said(http.StatusForbidden, "1 error occurred: permission denied"),
		Expired:      said(http.StatusForbidden, "permission denied: invalid token"),
		Absent:       secretstorestest.Answer(http.StatusNotFound, `{"errors":[]}`),
		Down:         said(http.StatusServiceUnavailable, "Vault is sealed"),
		Confidential: []string{token, "hunter2"},
	})
}

func TestFailures_ShowServerMessage(t *testing.T) {
	f := server(t)
	f.Trouble(func(w http.ResponseWriter, r *http.Request) bool {
		secretstorestest.Answer(http.StatusServiceUnavailable, `{"errors":["Vault is sealed"]}`)(w, r)
		return true
	})
	_, err := open(t, options(f)).Get(t.Context(), "db", nil)
	if err == nil || !strings.Contains(err.Error(), "Vault is sealed") || !strings.Contains(err.Error(), f.URL) {
		t.Error(err)
	}
}

func TestGet_ReadsTokenFileEachTime(t *testing.T) {
	f := server(t)
	o := options(f)
	o.Token, o.TokenFile = "", filepath.Join(t.TempDir(), "token")
	if _, err := vault.Open(o); !fault.Is(err, fault.Denied) {
		t.Errorf("a missing file: %v", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(o.TokenFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("expired")
	s := open(t, o)
	if _, err := s.Get(t.Context(), "db", nil); !fault.Is(err, fault.Denied) {
		t.Errorf("an expired token: %v", err)
	}
	write(token + "\n")
	if _, err := s.Get(t.Context(), "db", nil); err != nil {
		t.Errorf("a renewed token: %v", err)
	}
	write("two\ntokens")
	if _, err := s.Get(t.Context(), "db", nil); !fault.Is(err, fault.Denied) {
		t.Errorf("two tokens: %v", err)
	}
}

func TestGet_SecretAsOneText(t *testing.T) {
	f := server(t)
	o := options(f)
	o.Text = true
	s := open(t, o)
	got, err := s.Get(t.Context(), "web/a b", nil)
	if diff := cmp.Diff(map[string]string{"web/a b": `{"key":"v"}`}, got); err != nil || diff != "" ||
		s.Features() != nil {
		t.Errorf("%v %v %s", err, s.Features(), diff)
	}
}

func TestGet_WithoutPrefix(t *testing.T) {
	f := server(t)
	o := options(f)
	o.Prefix = ""
	if _, err := open(t, o).Get(t.Context(), "quorate/db", nil); err != nil {
		t.Error(err)
	}
}

func TestGet_RefusesForeignCertificate(t *testing.T) {
	f := server(t)
	o := options(f)
	o.Transport = secretstorestest.NewFake(t, nil).Transport()
	o.Transport.(*http.Transport).TLSClientConfig.RootCAs = nil
	_, err := open(t, o).Get(t.Context(), "db", nil)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "authority") || len(f.Requests()) > 0 {
		t.Errorf("%v", err)
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	f := server(t)
	for name, spoil := range map[string]func(*vault.Options){
		"no token":          func(o *vault.Options) { o.Token = "" },
		"two tokens":        func(o *vault.Options) { o.TokenFile = "/x" },
		"no engine":         func(o *vault.Options) { o.Engine = "" },
		"odd engine":        func(o *vault.Options) { o.Engine = "a/../sys" },
		"odd prefix":        func(o *vault.Options) { o.Prefix = ".." },
		"no address":        func(o *vault.Options) { o.Address = "vault:8200" },
		"a user in it":      func(o *vault.Options) { o.Address = "https://user:hunter2@vault:8200" },
		"a query behind it": func(o *vault.Options) { o.Address = "https://vault:8200/?x" },
	} {
		o := options(f)
		spoil(&o)
		if _, err := vault.Open(o); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBulk_NamesDeniedSecret(t *testing.T) {
	f := server(t)
	f.Trouble(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/kv/team/data/quorate/web/a b" {
			return false
		}
		secretstorestest.Answer(http.StatusForbidden, `{"errors":["permission denied"]}`)(w, r)
		return true
	})
	_, err := open(t, options(f)).Bulk(context.Background(), nil)
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "web/a b") {
		t.Error(err)
	}
}
