package bearer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/flight"
	"github.com/quorate/quorate/internal/rest"
)

const (
	fetchTime = 10 * time.Second // longest time of one fetch
	failRest  = 2 * time.Second  // time after a failed fetch in which no other fetch starts
	keysPause = 5 * time.Second  // minimum time between two successful fetches of the keys
	maxAnswer = 1 << 20          // bytes of an answer of the issuer
)

// issuer reads and caches the configuration and the signing keys of an OpenID Connect issuer. It is safe for concurrent
// use.
type issuer struct {
	name, keysURL string // keysURL is empty if the configuration of the issuer names it
	client        *http.Client
	configs       *flight.Group[*config]
	fetches       *flight.Group[[]jose.JSONWebKey]

	mu      sync.Mutex // guards the fields below
	config  *config    // nil until the configuration was read
	keys    []jose.JSONWebKey
	fetched time.Time // time of the fetch of keys
}

// config is the part of an OpenID configuration that the middleware uses. It is immutable.
type config struct {
	keysURL    string
	algorithms []string // accepted signature algorithms; empty = only RS256
}

func newIssuer(name, keysURL string) *issuer {
	i := &issuer{name: name, keysURL: keysURL, client: &http.Client{
		Transport: rest.LimitTo(rest.Transport(rest.TLS(nil)), maxAnswer), Timeout: fetchTime}}
	i.configs = flight.New[*config](fetchTime, failRest)
	i.fetches = flight.New[[]jose.JSONWebKey](fetchTime, failRest)
	if keysURL != "" {
		i.config = &config{keysURL: keysURL, algorithms: asymmetric()}
	}
	return i
}

// close ends the running fetches.
func (i *issuer) close() {
	i.configs.Close()
	i.fetches.Close()
	i.client.CloseIdleConnections()
}

// configuration returns the OpenID configuration of the issuer, which it fetches once and then caches. It fetches
// nothing if the component sets the URL of the keys.
func (i *issuer) configuration(ctx context.Context) (*config, error) {
	i.mu.Lock()
	known := i.config
	i.mu.Unlock()
	if known != nil {
		return known, nil
	}
	return i.configs.Do(ctx, "", func(ctx context.Context) (*config, error) {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.name)
		if err != nil {
			return nil, err
		}
		var answer struct {
			Keys       string   `json:"jwks_uri"`
			Algorithms []string `json:"id_token_signing_alg_values_supported"`
		}
		if err := provider.Claims(&answer); err != nil {
			return nil, err
		}
		c := &config{keysURL: answer.Keys}
		for _, name := range answer.Algorithms {
			if slices.Contains(asymmetric(), name) {
				c.algorithms = append(c.algorithms, name)
			}
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.config = c
		return c, nil
	})
}

// asymmetric returns the signature algorithms that need no shared secret.
func asymmetric() []string {
	return []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384,
		oidc.PS512, oidc.EdDSA}
}

// renewed returns fresh keys of the issuer, for a token that the cached keys do not verify. It returns the cached keys
// if they were fetched less than keysPause ago, so that a client cannot cause a fetch with every request.
func (i *issuer) renewed(ctx context.Context, c *config) ([]jose.JSONWebKey, error) {
	if keys, recent := i.known(); recent {
		return keys, nil
	}
	return i.fetches.Do(ctx, "", func(ctx context.Context) ([]jose.JSONWebKey, error) {
		if keys, recent := i.known(); recent { // fetched since the caller looked
			return keys, nil
		}
		keys, err := i.fetch(ctx, c.keysURL)
		if err != nil {
			return nil, err
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.keys, i.fetched = keys, time.Now()
		return keys, nil
	})
}

// known returns the cached keys, and whether they were fetched less than keysPause ago.
func (i *issuer) known() (keys []jose.JSONWebKey, recent bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys, time.Since(i.fetched) < keysPause
}

// fetch fetches the keys of the issuer. It omits keys that are invalid, not public, or of a type that the library
// does not know. It returns fault.Corrupt if no key remains.
func (i *issuer) fetch(ctx context.Context, url string) ([]jose.JSONWebKey, error) {
	const op = "bearer.fetch"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fault.Wrap(err, op, "the address of the keys")
	}
	response, err := i.client.Do(request)
	if err != nil {
		return nil, fault.Wrap(err, op, "reading the keys")
	}
	defer response.Body.Close() //nolint:errcheck // what matters has been read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fault.Wrap(err, op, "reading the keys")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if response.StatusCode != http.StatusOK || json.Unmarshal(body, &set) != nil {
		return nil, fault.New(fault.Corrupt, op, "the answer is no set of keys")
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil && key.IsPublic() && key.Valid() {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fault.New(fault.Corrupt, op, "the set has no key that can be used")
	}
	return keys, nil
}

// attempt is the check of one token. It implements oidc.KeySet.
type attempt struct {
	issuer *issuer
	config *config
	failed error // the keys of the issuer could not be read
}

// VerifySignature implements oidc.KeySet. It first tries the cached keys. If none of them verifies the token, it
// fetches the keys again, but not more often than keysPause allows.
func (a *attempt) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	var algorithms []jose.SignatureAlgorithm
	for _, name := range asymmetric() { // the verifier has checked the algorithm
		algorithms = append(algorithms, jose.SignatureAlgorithm(name))
	}
	signed, err := jose.ParseSigned(token, algorithms)
	if err != nil {
		return nil, err
	}
	keys, _ := a.issuer.known()
	if payload, ok := verify(signed, keys); ok {
		return payload, nil
	}
	if keys, a.failed = a.issuer.renewed(ctx, a.config); a.failed != nil {
		return nil, a.failed
	}
	if payload, ok := verify(signed, keys); ok {
		return payload, nil
	}
	return nil, errors.New("no key of the issuer verifies the token")
}

// verify checks the signature of a token and returns the payload. It returns false if no key verifies the signature. If
// the token has a key id, verify tries only the keys with this id.
func verify(signed *jose.JSONWebSignature, keys []jose.JSONWebKey) ([]byte, bool) {
	id := signed.Signatures[0].Header.KeyID // the verifier has checked that there is one signature
	for _, key := range keys {
		if cmp.Or(id, key.KeyID) != key.KeyID {
			continue
		}
		if payload, err := signed.Verify(&key); err == nil {
			return payload, true
		}
	}
	return nil, false
}
