package bearer_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/middleware/bearer"
)

// issuer is an OpenID Connect issuer on loopback.
type issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/keys" {
			encode := base64.RawURLEncoding.EncodeToString
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{"kty": "RSA", "kid": "1",
				"alg": "RS256", "use": "sig", "n": encode(key.N.Bytes()),
				"e": encode(big.NewInt(int64(key.E)).Bytes())}}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) token(t *testing.T, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	token.Header["kid"] = "1"
	text, err := token.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func open(t *testing.T, metadata ...component.Property) *bearer.Bearer {
	t.Helper()
	v, _, err := component.Metadata(metadata).Check(component.Pos{}, "b", bearer.Fields())
	if err != nil {
		t.Fatal(err)
	}
	b := bearer.Open(v)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestBearer_ChecksTokens(t *testing.T) {
	i, other := newIssuer(t), newIssuer(t)
	later := time.Now().Add(time.Hour).Unix()
	good := jwt.MapClaims{"iss": i.URL, "aud": "shop", "exp": later, "sub": "me"}
	for _, b := range []*bearer.Bearer{
		open(t, component.Property{Name: "issuer", Value: i.URL}, component.Property{Name: "audience", Value: "shop"}),
		open(t, component.Property{Name: "issuerURL", Value: i.URL},
			component.Property{Name: "clientID", Value: "shop"},
			component.Property{Name: "jwksURL", Value: i.URL + "/keys"}),
	} {
		for name, c := range map[string]struct {
			header string
			status int
		}{
			"valid":         {"Bearer " + i.token(t, good), 0},
			"lower case":    {"bearer " + i.token(t, good), 0},
			"none":          {"", 401},
			"basic":         {"Basic abc", 401},
			"other key":     {"Bearer " + other.token(t, good), 401},
			"garbage":       {"Bearer garbage", 401},
			"expired":       {"Bearer " + i.token(t, jwt.MapClaims{"iss": i.URL, "aud": "shop", "exp": 1}), 401},
			"other issuer":  {"Bearer " + i.token(t, jwt.MapClaims{"iss": "x", "aud": "shop", "exp": later}), 401},
			"other readers": {"Bearer " + i.token(t, jwt.MapClaims{"iss": i.URL, "aud": "x", "exp": later}), 401},
		} {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Authorization", c.header)
			err := b.Filter(r)
			refusal, _ := errors.AsType[*middleware.Refusal](err)
			switch {
			case c.status == 0 && err != nil, c.status != 0 && (refusal == nil || refusal.Status != c.status):
				t.Errorf("%s: %v", name, err)
			case refusal != nil && (strings.Contains(refusal.Message, "garbage") ||
				refusal.Header.Get("Www-Authenticate") == ""):
				t.Errorf("%s: %s, %v", name, refusal.Message, refusal.Header)
			}
		}
	}
}

// A component with jwksURL accepts each algorithm that needs no shared secret, because no configuration lists some.
func TestBearer_KeysURLAllowsEllipticCurves(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
	}))
	defer server.Close()
	b := open(t, component.Property{Name: "issuer", Value: issuerName}, component.Property{Name: "audience",
		Value: "shop"}, component.Property{Name: "jwksURL", Value: server.URL})
	claims := jwt.MapClaims{"iss": issuerName, "aud": "shop", "exp": time.Now().Add(time.Hour).Unix()}
	filter := func(method jwt.SigningMethod, key any) int {
		token := jwt.NewWithClaims(method, claims)
		token.Header["kid"] = "1"
		text, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+text)
		err = b.Filter(r)
		if code := status(err); code != 0 || err == nil {
			return code
		}
		t.Error(err)
		return 0
	}
	if code := filter(jwt.SigningMethodES256, key); code != 0 {
		t.Errorf("ES256: status %d", code)
	}
	if code := filter(jwt.SigningMethodHS256, []byte("shared")); code != 401 {
		t.Errorf("HS256: status %d", code)
	}
}

func TestBearer_IssuerDownAnswers503UntilItIsBack(t *testing.T) {
	i := newIssuer(t)
	b := open(t, component.Property{Name: "issuer", Value: i.URL + "/missing"},
		component.Property{Name: "audience", Value: "shop"})
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer x")
	refusal, _ := errors.AsType[*middleware.Refusal](b.Filter(r))
	if refusal == nil || refusal.Status != 503 {
		t.Errorf("%+v", refusal)
	}
}
