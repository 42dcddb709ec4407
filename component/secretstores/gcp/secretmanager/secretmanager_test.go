package secretmanager_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/gcp/secretmanager"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "ya29.theAccessToken"

// cloud is a server that imitates the token service and Secret Manager.
type cloud struct {
	*secretstorestest.Fake
	key    *rsa.PrivateKey
	issued atomic.Int64 // number of issued access tokens
	valid  atomic.Int64 // number of the token that is accepted; older tokens are refused
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{key: key}
	c.Fake = secretstorestest.NewFake(t, http.HandlerFunc(c.serve))
	return c
}

// serve implements the OAuth 2 service account flow and the REST API.
func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	value := func(text string) string {
		sum := crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))
		return fmt.Sprintf(`{"name":"projects/1/secrets/x/versions/1","payload":{"data":%q,"dataCrc32c":"%d"}}`,
			base64.StdEncoding.EncodeToString([]byte(text)), sum)
	}
	paths := map[string]string{
		"/v1/projects/shop-1/secrets/db/versions/latest:access":    value("hunter2"),
		"/v1/projects/shop-1/secrets/db/versions/2:access":         value("older"),
		"/v1/projects/shop-1/secrets/db/versions/prod:access":      value("by alias"),
		"/v1/projects/shop-1/secrets/bin_1/versions/latest:access": value("\xff\xfe"),
		"/v1/projects/shop-1/secrets/damaged/versions/latest:access": strings.Replace(value("hunter2"), `"data":"`,
			`"data":"AAAA`, 1),
		"/v1/projects/shop-1/secrets?pageSize=250": `{"secrets":[{"name":"projects/1/secrets/db"},` +
			`{"name":"projects/1/secrets/empty"}],` +
			`"nextPageToken":"a+b","totalSize":3}`,
		"/v1/projects/shop-1/secrets?pageSize=250&pageToken=a%2Bb": `{` +
			`"secrets":[{"name":"projects/1/secrets/bin_1"}],"totalSize":3}`,
	}
	body, ok := paths[r.RequestURI]
	switch {
	case r.URL.Path == "/token":
		c.token(w, r)
	case r.Header.Get("Authorization") != fmt.Sprintf("Bearer %s%d", token, c.valid.Load()):
		failure(http.StatusUnauthorized, "UNAUTHENTICATED")(w, r)
	case ok:
		secretstorestest.Answer(http.StatusOK, body)(w, r)
	default:
		failure(http.StatusNotFound, "NOT_FOUND")(w, r)
	}
}

// token checks the signed assertion of the service account.
func (c *cloud) token(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.FormValue("assertion"), ".")
	if r.Method != http.MethodPost || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" ||
		len(parts) != 3 {
		secretstorestest.Answer(http.StatusBadRequest,
			`{"error":"invalid_request","error_description":"{credentials}"}`)(w, r)
		return
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var said struct{ Iss, Scope, Aud string }
	_ = json.Unmarshal(claims, &said)
	if rsa.VerifyPKCS1v15(&c.key.PublicKey, crypto.SHA256, sum[:], signature) != nil ||
		said.Iss != "quorate@shop-1.iam.gserviceaccount.com" ||
		said.Scope != "https://www.googleapis.com/auth/cloud-platform" || said.Aud != c.URL+"/token" {
		secretstorestest.Answer(http.StatusBadRequest,
			`{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`)(w, r)
		return
	}
	n := c.issued.Add(1)
	c.valid.Store(n)
	secretstorestest.Answer(http.StatusOK,
		fmt.Sprintf(`{"access_token":"%s%d","expires_in":3599,"token_type":"Bearer"}`, token, n))(w, r)
}

// failure returns a handler that answers with an error in the form of the API.
func failure(code int, status string) http.HandlerFunc {
	return secretstorestest.Answer(code,
		fmt.Sprintf(`{"error":{"code":%d,"message":"it failed {credentials}","status":%q}}`, code, status))
}

// account returns the key file of the service account.
func (c *cloud) account(t testing.TB, key *rsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "shop-1", "private_key_id": "abc",
		"client_email": "quorate@shop-1.iam.gserviceaccount.com", "token_uri": c.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cloud) options(t testing.TB) secretmanager.Options {
	return secretmanager.Options{Project: "shop-1", Credentials: c.account(t, c.key), Endpoint: c.URL,
		Transport: c.Transport()}
}

func open(t testing.TB, o secretmanager.Options) *secretmanager.Store {
	t.Helper()
	s, err := secretmanager.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore_Conformance(t *testing.T) {
	c := newCloud(t)
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store {
		s := open(t, c.options(t))
		if _, err := s.Get(t.Context(), "db", nil); err != nil { // so that concurrent calls share a token
			t.Fatal(err)
		}
		return s
	}, secretstorestest.Options{
		Secrets: map[string]map[string]string{"db": {"db": "hunter2"}, "bin_1": {"bin_1": "//4="}},
		Absent:  "none", Twins: []string{"DB", "projects/1/secrets/db", "db/versions/2"},
	})
}

func TestRequests_MatchReference(t *testing.T) {
	c := newCloud(t)
	s := open(t, c.options(t))
	for version, want := range map[string]string{"2": "older", "prod": "by alias"} {
		got, err := s.Get(t.Context(), "db", map[string]string{"version_id": version})
		if err != nil || got["db"] != want {
			t.Errorf("version %s: %v, %v", version, got, err)
		}
	}
	c.Requests()
	if _, err := s.Bulk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	requests := c.Requests()
	want := []string{"GET /v1/projects/shop-1/secrets?pageSize=250",
		"GET /v1/projects/shop-1/secrets?pageSize=250&pageToken=a%2Bb"}
	if diff := cmp.Diff(want, requests[:2]); diff != "" || len(requests) != 5 || c.issued.Load() != 1 {
		t.Errorf("%d requests, %d tokens %s", len(requests), c.issued.Load(), diff)
	}
	for _, version := range []string{"../1", "1:destroy", "a/b"} {
		if _, err := s.Get(t.Context(), "db", map[string]string{"version_id": version}); !fault.Is(err, fault.Invalid) {
			t.Errorf("version %q: %v", version, err)
		}
	}
	if _, err := s.Get(t.Context(), "damaged", nil); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a damaged value: %v", err)
	}
}

func TestFailures_Service(t *testing.T) {
	c := newCloud(t)
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: c.Fake, Open: func(t *testing.T) secretstores.Store { return open(t, c.options(t)) }, Name: "db",
		About:        func(r *http.Request) bool { return r.URL.Path != "/token" },
		Throttled:    failure(http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"),
		Denied:       failure(http.StatusForbidden, "PERMISSION_DENIED"),
		Expired:      failure(http.StatusUnauthorized, "UNAUTHENTICATED"),
		Absent:       failure(http.StatusNotFound, "NOT_FOUND"),
		Down:         failure(http.StatusServiceUnavailable, "UNAVAILABLE"),
		Confidential: []string{token, "hunter2", "PRIVATE KEY"},
	})
}

func TestFailures_TokenService(t *testing.T) {
	c := newCloud(t)
	said := func(status int, code string) http.HandlerFunc {
		return secretstorestest.Answer(status, `{"error":"`+code+`","error_description":"{credentials} assertion"}`)
	}
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: c.Fake, Open: func(t *testing.T) secretstores.Store { return open(t, c.options(t)) }, Name: "db",
		About:     func(r *http.Request) bool { return r.URL.Path == "/token" },
		Throttled: nil, Denied: said(http.StatusUnauthorized, "invalid_client"),
		Expired:      said(http.StatusBadRequest, "invalid_grant"),
		Down:         said(http.StatusServiceUnavailable, "temporarily_unavailable"),
		Confidential: []string{token, "hunter2", "PRIVATE KEY"},
	})
}

func TestGet_RenewsRefusedAccessToken(t *testing.T) {
	c := newCloud(t)
	s := open(t, c.options(t))
	if _, err := s.Get(t.Context(), "db", nil); err != nil {
		t.Fatal(err)
	}
	c.valid.Store(-1) // the token is revoked before it expires
	if _, err := s.Get(t.Context(), "db", nil); err != nil || c.issued.Load() != 2 {
		t.Errorf("%d tokens: %v", c.issued.Load(), err)
	}
}

func TestGet_ForeignKeyIsRefused(t *testing.T) {
	c := newCloud(t)
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	o := c.options(t)
	o.Credentials = c.account(t, foreign)
	_, err = open(t, o).Get(t.Context(), "db", nil)
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "invalid_grant") ||
		strings.Contains(err.Error(), "PRIVATE KEY") {
		t.Error(err)
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	c := newCloud(t)
	for name, spoil := range map[string]func(*secretmanager.Options){
		"no project":  func(o *secretmanager.Options) { o.Project = "" },
		"odd project": func(o *secretmanager.Options) { o.Project = "a/b" },
		"plain http":  func(o *secretmanager.Options) { o.Endpoint = "http://secretmanager.example" },
		"no address":  func(o *secretmanager.Options) { o.Endpoint = "x" },
		"no JSON":     func(o *secretmanager.Options) { o.Credentials = []byte("PRIVATE KEY") },
		"no PEM": func(o *secretmanager.Options) {
			o.Credentials = []byte(`{"type":"service_account","client_email":"a@b","token_uri":"https://x",` +
				`"private_key":"PRIVATE KEY"}`)
		},
		"a user account": func(o *secretmanager.Options) { o.Credentials = []byte(`{"type":"authorized_user"}`) },
	} {
		o := c.options(t)
		spoil(&o)
		if _, err := secretmanager.Open(o); !fault.Is(err, fault.Invalid) ||
			strings.Contains(err.Error(), "PRIVATE KEY") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
