package eventgridtest

import (
	"crypto/rsa"
	"encoding/base64"
	"math/big"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// KeyID is the id of the signing key of the tenant.
const KeyID = "key-1"

func (f *Fake) issuer() string { return f.URL + "/" + f.Tenant + "/v2.0" }

func (f *Fake) managementToken() string { return "eyJ0eXAiOiJKV1Qi.management." + f.Client }

func (f *Fake) configuration(w http.ResponseWriter, _ *http.Request, _ []byte) {
	base := f.URL + "/" + f.Tenant
	write(w, http.StatusOK, map[string]any{
		"issuer": f.issuer(), "authorization_endpoint": base + "/oauth2/v2.0/authorize",
		"token_endpoint": base + "/oauth2/v2.0/token", "jwks_uri": base + "/discovery/v2.0/keys",
	})
}

func (f *Fake) keySet(w http.ResponseWriter, _ *http.Request, _ []byte) {
	f.mu.Lock()
	hidden := f.hidden
	f.mu.Unlock()
	if hidden {
		fail(w, http.StatusForbidden, "Forbidden", "The keys are withheld.")
		return
	}
	public := f.Key.Public().(*rsa.PublicKey)
	write(w, http.StatusOK, map[string]any{"keys": []any{
		map[string]any{"kty": "EC", "kid": "other", "use": "sig", "crv": "P-256"},
		map[string]any{"kty": "RSA", "use": "sig", "kid": KeyID, "x5t": KeyID,
			"n": base64.RawURLEncoding.EncodeToString(public.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(public.E)).Bytes())},
	}})
}

// token answers a request for an access token of the management API.
func (f *Fake) token(w http.ResponseWriter, _ *http.Request, body []byte) {
	form, err := parseForm(body)
	switch {
	case err != nil || form.Get("grant_type") != "client_credentials" || form.Get("client_id") != f.Client ||
		form.Get("client_secret") != f.Secret:
		write(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client",
			"error_description": "AADSTS7000215: Invalid client secret provided.", "error_codes": []int{7000215}})
	case !strings.HasPrefix(form.Get("scope"), f.URL+"/.default"):
		write(w, http.StatusBadRequest,
			map[string]any{"error": "invalid_scope", "error_description": "AADSTS70011", "error_codes": []int{70011}})
	default:
		write(w, http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599,
			"access_token": f.managementToken()})
	}
}

// Claims returns the claims of the token in a delivery.
func (f *Fake) Claims() jwt.MapClaims {
	now := time.Now()
	return jwt.MapClaims{"iss": f.issuer(), "aud": f.Client, "appid": "4962773b-9cdb-44cf-a8bf-237846a00ab7",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix()}
}

// Sign returns a token with the given claims, signed with key. The parameter id becomes the key id in the header of the
// token.
func (f *Fake) Sign(claims jwt.MapClaims, key *rsa.PrivateKey, id string) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	t.Header["kid"] = id
	return t.SignedString(key)
}

// Token returns a valid token for a delivery.
func (f *Fake) Token() (string, error) { return f.Sign(f.Claims(), f.Key, KeyID) }
