package bearer_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/middleware/bearer"
)

const issuerName = "https://issuer.example"

// remote is an issuer without a network, for tests in virtual time.
type remote struct {
	t       *testing.T
	key     *rsa.PrivateKey
	kid     string
	hangs   atomic.Bool
	fails   atomic.Bool
	fetches atomic.Int64
}

func newRemote(t *testing.T) *remote {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return &remote{t: t, key: key, kid: "1"}
}

// RoundTrip implements http.RoundTripper.
func (i *remote) RoundTrip(r *http.Request) (*http.Response, error) {
	i.fetches.Add(1)
	if i.hangs.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if i.fails.Load() {
		return nil, errors.New("down")
	}
	var body any = map[string]any{"issuer": issuerName, "jwks_uri": issuerName + "/keys"}
	if r.URL.Path == "/keys" {
		encode := base64.RawURLEncoding.EncodeToString
		body = map[string]any{"keys": []any{map[string]string{"kty": "future", "kid": "0"},
			map[string]string{"kty": "RSA", "kid": i.kid, "alg": "RS256", "use": "sig", "n": encode(i.key.N.Bytes()),
				"e": encode(big.NewInt(int64(i.key.E)).Bytes())}}}
	}
	text, err := json.Marshal(body)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(text))), Request: r}, err
}

func (i *remote) open() *bearer.Bearer {
	b := open(i.t, component.Property{Name: "issuer", Value: issuerName},
		component.Property{Name: "audience", Value: "shop"})
	bearer.SetTransport(b, i)
	return b
}

// request returns a request with a token whose header has the key id kid.
func (i *remote) request(ctx context.Context, kid string) *http.Request {
	i.t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256,
		jwt.MapClaims{"iss": issuerName, "aud": "shop", "exp": time.Now().Add(time.Hour).Unix()})
	token.Header["kid"] = kid
	text, err := token.SignedString(i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+text)
	return r
}

// status returns the status of a refusal; 0 = the request may pass.
func status(err error) int {
	if refusal, ok := errors.AsType[*middleware.Refusal](err); ok {
		return refusal.Status
	}
	return 0
}

// If the issuer hangs, requests do not wait one after another. A request waits at most until its own context ends.
func TestBearer_HangingIssuerDelaysEachRequestOnce(t *testing.T) {
	for name, known := range map[string]bool{"configuration": false, "keys": true} {
		synctest.Test(t, func(t *testing.T) {
			i := newRemote(t)
			b := i.open()
			defer b.Close()
			if known {
				if err := b.Filter(i.request(t.Context(), "1")); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Minute)
			}
			i.hangs.Store(true)
			i.fetches.Store(0)
			begin := time.Now()
			wait := func(r *http.Request, most time.Duration) {
				if code := status(b.Filter(r)); code != 503 || time.Since(begin) != most {
					t.Errorf("%s: status %d after %s, want 503 after %s", name, code, time.Since(begin), most)
				}
			}
			brief, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			go wait(i.request(brief, "other"), time.Second)
			for range 4 {
				go wait(i.request(t.Context(), "other"), 10*time.Second)
			}
			if known { // a key that is known needs no fetch
				if err := b.Filter(i.request(t.Context(), "1")); err != nil || time.Since(begin) != 0 {
					t.Errorf("a token with a known key: %v after %s", err, time.Since(begin))
				}
			}
			<-time.After(10 * time.Second)
			synctest.Wait()
			wait(i.request(t.Context(), "other"), 10*time.Second) // the failure is not old enough for another fetch
			if n := i.fetches.Load(); n != 1 {
				t.Errorf("%s: %d fetches", name, n)
			}
		})
	}
}

func TestBearer_UnknownKeysAreFetchedAtALimitedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newRemote(t)
		b := i.open()
		defer b.Close()
		for n := range 100 {
			if code := status(b.Filter(i.request(t.Context(), "unknown "+strconv.Itoa(n)))); code != 401 {
				t.Fatalf("status %d", code)
			}
		}
		if n := i.fetches.Load(); n != 2 { // the configuration and the keys
			t.Errorf("%d fetches", n)
		}
		i.kid = "2" // the issuer changes its key
		<-time.After(5 * time.Second)
		if err := b.Filter(i.request(t.Context(), "2")); err != nil {
			t.Errorf("a token with the new key: %v", err)
		}
	})
}

func TestBearer_KnownKeysWorkWithoutTheIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newRemote(t)
		b := i.open()
		defer b.Close()
		if err := b.Filter(i.request(t.Context(), "1")); err != nil {
			t.Fatal(err)
		}
		i.fails.Store(true)
		<-time.After(time.Hour)
		for range 3 {
			if code := status(b.Filter(i.request(t.Context(), "2"))); code != 503 {
				t.Errorf("a token whose key cannot be read: status %d", code)
			}
			if err := b.Filter(i.request(t.Context(), "1")); err != nil {
				t.Error(err)
			}
		}
		if n := i.fetches.Load(); n != 3 {
			t.Errorf("%d fetches, want 2 and one that failed", n)
		}
	})
}

// An answer of the issuer cannot use more than a bounded amount of memory.
func TestBearer_LargeAnswersOfTheIssuerAreRefused(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"body": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"issuer":"`)
			for range 2 << 10 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		},
		"header": func(w http.ResponseWriter, _ *http.Request) {
			for n := range 10_000 {
				w.Header().Set("X"+strconv.Itoa(n), "")
			}
		},
	} {
		server := httptest.NewServer(answer)
		defer server.Close()
		b := open(t, component.Property{Name: "issuer", Value: server.URL},
			component.Property{Name: "audience", Value: "shop"})
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer x")
		if code := status(b.Filter(r)); code != 503 {
			t.Errorf("%s: status %d", name, code)
		}
		why := bearer.Failure(t.Context(), b)
		if !strings.Contains(why, "too large") && !strings.Contains(why, "exceeded") {
			t.Errorf("%s: %s", name, why)
		}
	}
}
