package keyvault_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/azure/keyvault"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token  = "eyJ0eXAiOiJKV1QitheAccessToken"
	secret = "8Q~theClientSecret"
	tenant = "11111111-2222-3333-4444-555555555555"
	client = "66666666-7777-8888-9999-000000000000"
)

// newCloud starts a server that imitates Entra ID and a Key Vault.
func newCloud(t testing.TB) *secretstorestest.Fake {
	var f *secretstorestest.Fake
	value := func(name, version, text string) string {
		out, _ := json.Marshal(map[string]any{"value": text, "id": f.URL + "/secrets/" + name + "/" + version,
			"attributes": map[string]any{"enabled": true, "created": 1493938410,
				"recoveryLevel": "Recoverable+Purgeable"}})
		return string(out)
	}
	f = secretstorestest.NewFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := func(body string) { secretstorestest.Answer(http.StatusOK, body)(w, r) }
		switch name := strings.ToLower(strings.TrimSuffix(r.URL.Path, "/")); {
		case r.URL.Path == "/"+tenant+"/v2.0/.well-known/openid-configuration":
			answer(`{"issuer":"` + f.URL + `/` + tenant + `/v2.0","authorization_endpoint":"` + f.URL + `/` + tenant +
				`/oauth2/v2.0/authorize","token_endpoint":"` + f.URL + `/` + tenant + `/oauth2/v2.0/token"}`)
		case r.URL.Path == "/"+tenant+"/oauth2/v2.0/token":
			grant(w, r)
		case r.URL.Query().Get("api-version") == "":
			failure(http.StatusBadRequest, "BadParameter")(w, r)
		case r.Header.Get("Authorization") == "":
			w.Header().Set("WWW-Authenticate",
				`Bearer authorization="`+f.URL+`/`+tenant+`", resource="https://vault.azure.net"`)
			failure(http.StatusUnauthorized, "Unauthorized")(w, r)
		case r.Header.Get("Authorization") != "Bearer "+token:
			failure(http.StatusUnauthorized, "Unauthorized")(w, r)
		case name == "/secrets" && r.URL.Query().Get("$skiptoken") == "":
			answer(`{"value":[{"id":"` + f.URL + `/secrets/Db","attributes":{"enabled":true}},{"id":"` + f.URL +
				`/secrets/off","attributes":{"enabled":false}}],"nextLink":"` + f.URL +
				`/secrets?api-version=x&$skiptoken=2"}`)
		case name == "/secrets":
			answer(`{"value":[{"id":"` + f.URL + `/secrets/web-key","attributes":{"enabled":true}}],"nextLink":null}`)
		case name == "/secrets/db":
			answer(value("Db", "v2", "hunter2"))
		case name == "/secrets/db/v1":
			answer(value("Db", "v1", "older"))
		case name == "/secrets/web-key":
			answer(value("web-key", "v1", ""))
		case name == "/secrets/off":
			failure(http.StatusForbidden, "Forbidden")(w, r)
		default:
			failure(http.StatusNotFound, "SecretNotFound")(w, r)
		}
	}))
	return f
}

// grant answers a request for a token. It accepts the secret or a signed assertion of the application, for the scope
// of Key Vault.
func grant(w http.ResponseWriter, r *http.Request) {
	known := r.FormValue("client_secret") == secret || strings.Count(r.FormValue("client_assertion"), ".") == 2 &&
		r.FormValue("client_secret") == ""
	if r.FormValue("grant_type") != "client_credentials" || r.FormValue("client_id") != client || !known ||
		!strings.HasPrefix(r.FormValue("scope"), "https://vault.azure.net/.default") {
		secretstorestest.Answer(http.StatusUnauthorized,
			`{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided `+secret+
				`","error_codes":[7000215]}`)(w, r)
		return
	}
	secretstorestest.Answer(http.StatusOK,
		`{"token_type":"Bearer","expires_in":3599,"ext_expires_in":3599,"access_token":"`+token+`"}`)(w, r)
}

// failure returns a handler that answers with an error in the form of a vault.
func failure(status int, code string) http.HandlerFunc {
	return secretstorestest.Answer(status,
		`{"error":{"code":"`+code+`","message":"it failed {credentials}","innererror":{"code":"Inner"}}}`)
}

func options(f *secretstorestest.Fake) keyvault.Options {
	return keyvault.Options{Address: f.URL, Identity: entra.Settings{
		AuthorityHost: f.URL + "/", Tenant: tenant, Client: client, ClientSecret: secret, Transport: f.Transport(),
		Pause: time.Millisecond,
	}}
}

func open(t testing.TB, o keyvault.Options) *keyvault.Store {
	t.Helper()
	s, err := keyvault.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore_Conformance(t *testing.T) {
	f := newCloud(t)
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store { return open(t, options(f)) },
		secretstorestest.Options{
			Secrets: map[string]map[string]string{"Db": {"Db": "hunter2"}, "web-key": {"web-key": ""}},
			Absent:  "none", Twins: []string{"Db/v1", f.URL + "/secrets/Db"},
		})
}

func TestRequests_MatchReference(t *testing.T) {
	f := newCloud(t)
	s := open(t, options(f))
	got, err := s.Get(t.Context(), "db", map[string]string{"version_id": "v1"})
	if err != nil || got["db"] != "older" {
		t.Errorf("%v, %v", got, err)
	}
	const version = "?api-version=2026-04-01"
	want := []string{
		"GET /secrets/db/v1" + version, // without a token: the answer names the token service
		"GET /" + tenant + "/v2.0/.well-known/openid-configuration?",
		"POST /" + tenant + "/oauth2/v2.0/token",
		"GET /secrets/db/v1" + version,
	}
	if diff := cmp.Diff(want, f.Requests()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := s.Bulk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want = []string{"GET /secrets" + version, "GET /secrets?%24skiptoken=2&api-version=2026-04-01"}
	requests := f.Requests()
	if diff := cmp.Diff(want[:1], requests[:1]); diff != "" || len(requests) != 4 ||
		!strings.Contains(requests[1], "skiptoken=2") {
		t.Errorf("%q (-want +got)\n%s", requests, diff)
	}
	all, err := s.Bulk(t.Context(), map[string]string{"maxresults": "1"})
	if err != nil || len(all) != 1 {
		t.Errorf("maxresults: %v, %v", all, err)
	}
	if _, err := s.Bulk(t.Context(), map[string]string{"maxresults": "x"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("maxresults: %v", err)
	}
	if _, err := s.Get(t.Context(), "db", map[string]string{"version_id": "../x"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("version: %v", err)
	}
}

func TestFailures_Vault(t *testing.T) {
	f := newCloud(t)
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: f, Open: func(t *testing.T) secretstores.Store { return open(t, options(f)) }, Name: "Db",
		About: func(r *http.Request) bool {
			return strings.HasPrefix(r.URL.Path, "/secrets") && r.Header.Get("Authorization") != ""
		},
		Throttled:    failure(http.StatusTooManyRequests, "Throttled"),
		Denied:       failure(http.StatusForbidden, "Forbidden"),
		Expired:      failure(http.StatusUnauthorized, "Unauthorized"),
		Absent:       failure(http.StatusNotFound, "SecretNotFound"),
		Down:         failure(http.StatusServiceUnavailable, "ServiceUnavailable"),
		Confidential: []string{token, secret, "hunter2"},
	})
}

func TestFailures_EntraID(t *testing.T) {
	f := newCloud(t)
	said := func(status int, code, number string) http.HandlerFunc {
		return secretstorestest.Answer(status,
			`{"error":"`+code+`","error_description":"AADSTS`+number+`: `+secret+`","error_codes":[`+number+`]}`)
	}
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: f, Open: func(t *testing.T) secretstores.Store { return open(t, options(f)) }, Name: "Db",
		About:        func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/token") },
		Denied:       said(http.StatusUnauthorized, "invalid_client", "7000215"),
		Expired:      said(http.StatusUnauthorized, "invalid_client", "7000222"),
		Down:         said(http.StatusServiceUnavailable, "temporarily_unavailable", "90033"),
		Confidential: []string{token, secret, "hunter2"},
	})
}

func TestFailures_ShowErrorNumber(t *testing.T) {
	f := newCloud(t)
	o := options(f)
	o.Identity.ClientSecret = "another"
	_, err := open(t, o).Get(t.Context(), "Db", nil)
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "AADSTS7000215") ||
		strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

// certificate returns a new self-signed certificate and its key in PEM form.
func certificate(t testing.TB) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func TestOpen_Certificate(t *testing.T) {
	f := newCloud(t)
	text := certificate(t)
	path := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(*entra.Settings){
		"text": func(s *entra.Settings) { s.Certificate = text },
		"file": func(s *entra.Settings) { s.CertificateFile = path },
	} {
		o := options(f)
		o.Identity.ClientSecret = ""
		set(&o.Identity)
		if _, err := open(t, o).Get(t.Context(), "Db", nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	f := newCloud(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*keyvault.Options){
		"no vault":        func(o *keyvault.Options) { o.Address = "" },
		"two vaults":      func(o *keyvault.Options) { o.Vault = "x" },
		"odd name":        func(o *keyvault.Options) { o.Address, o.Vault = "", "evil.example/" },
		"plain http":      func(o *keyvault.Options) { o.Address = "http://vault.example" },
		"odd environment": func(o *keyvault.Options) { o.Identity.Environment = "mars" },
		"no tenant":       func(o *keyvault.Options) { o.Identity.Tenant = "" },
		"odd tenant":      func(o *keyvault.Options) { o.Identity.Tenant = "a/b" },
		"no client":       func(o *keyvault.Options) { o.Identity.Client = "" },
		"two credentials": func(o *keyvault.Options) { o.Identity.Certificate = "x" },
		"no certificate": func(o *keyvault.Options) {
			o.Identity.ClientSecret, o.Identity.Certificate = "",
				"PRIVATE"
		},
		"a key alone": func(o *keyvault.Options) {
			o.Identity.ClientSecret, o.Identity.Certificate =
				"", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		},
		"no such file": func(o *keyvault.Options) {
			o.Identity.ClientSecret, o.Identity.CertificateFile = "",
				"/nowhere"
		},
	} {
		o := options(f)
		spoil(&o)
		if _, err := keyvault.Open(o); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), secret) ||
			strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(f.Requests()) > 0 {
		t.Error("opening a store makes requests")
	}
}

func TestOpen_VaultNames(t *testing.T) {
	for environment, host := range map[string]string{"": "shop.vault.azure.net",
		"AZURECHINACLOUD": "shop.vault.azure.cn", "AzureUSGovernmentCloud": "shop.vault.usgovcloudapi.net"} {
		var asked string
		o := keyvault.Options{Vault: "Shop", Identity: entra.Settings{Environment: environment, Tenant: tenant,
			Client: client, ClientSecret: secret, Pause: time.Millisecond,
			Transport: transport(func(r *http.Request) { asked = r.URL.Host })}}
		if _, err := open(t, o).Get(t.Context(), "db", nil); !fault.Is(err, fault.Unavailable) || asked != host {
			t.Errorf("%s: %s, %v", environment, asked, err)
		}
	}
}

// transport is an http.RoundTripper that calls the function with each request, and then fails.
type transport func(*http.Request)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t(r)
	return nil, os.ErrDeadlineExceeded
}
