package eventgrid

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/flight"
	"github.com/quorate/quorate/internal/rest"
)

// The times of the tenant's signing keys.
const (
	keysFresh   = 15 * time.Minute // older keys are fetched again before their next use
	keysOld     = 24 * time.Hour   // older keys are not used
	keysPause   = 5 * time.Second  // minimum time between two fetches
	keysRest    = 2 * time.Second  // minimum time between a failed fetch and the next fetch
	keysTime    = 10 * time.Second // longest time of one fetch
	minKeyBits  = 2048
	maxExponent = 1<<31 - 1
)

// keys fetches and caches the keys with which a Microsoft Entra tenant signs tokens. It fetches them only when a token
// must be checked. It is safe for concurrent use.
type keys struct {
	service rest.Client
	tenant  string
	config  string // address of the OpenID configuration
	legacy  string // issuer of version 1 tokens, without the tenant's id

	fetches *flight.Group[keySet]

	mu      sync.Mutex // guards the fields below
	set     keySet
	fetched time.Time // time when set was fetched
}

// keySet has the signing keys of a tenant, and the accepted issuers of its tokens. It is immutable.
type keySet struct {
	issuers []string
	byID    map[string]*rsa.PublicKey
}

func newKeys(s *inputSettings) (*keys, error) {
	options, err := s.identity.Options()
	if err != nil {
		return nil, err
	}
	legacy := "https://sts.windows.net/"
	if c, err := entra.Cloud("china"); err == nil &&
		options.Cloud.ActiveDirectoryAuthorityHost == c.ActiveDirectoryAuthorityHost {
		legacy = "https://sts.chinacloudapi.cn/"
	}
	host := strings.TrimRight(options.Cloud.ActiveDirectoryAuthorityHost, "/")
	return &keys{
		service: rest.Client{Service: "Entra ID", HTTP: s.identity.Transport}, tenant: s.tenant, legacy: legacy,
		fetches: flight.New[keySet](keysTime, keysRest),
		config:  host + "/" + s.tenant + "/v2.0/.well-known/openid-configuration",
	}, nil
}

// issuers returns the allowed issuers of the tenant's tokens.
func (k *keys) issuers(ctx context.Context) ([]string, error) {
	set, err := k.current(ctx, func(keySet) bool { return true })
	return set.issuers, err
}

// find returns the key with the given id. It returns fault.Denied if the tenant has no such key, and
// fault.Unavailable if the keys cannot be read.
func (k *keys) find(ctx context.Context, id string) (*rsa.PublicKey, error) {
	set, err := k.current(ctx, func(s keySet) bool { return s.byID[id] != nil })
	if err != nil {
		return nil, err
	}
	if key := set.byID[id]; key != nil {
		return key, nil
	}
	return nil, denied("the bearer token is signed with a key that the tenant does not have")
}

// current returns the signing keys. It fetches them again if they are older than keysFresh, or if isGood returns false
// for them. It starts no fetch within keysPause after a successful fetch, or within keysRest after a failed one. If a
// fetch fails, it returns the previous keys, or fault.Unavailable if they are older than keysOld.
func (k *keys) current(ctx context.Context, isGood func(keySet) bool) (keySet, error) {
	set, age := k.known()
	if age < keysPause || age < keysFresh && isGood(set) {
		return set, nil
	}
	fetched, err := k.fetches.Do(ctx, "", func(ctx context.Context) (keySet, error) {
		if set, age := k.known(); age < keysPause { // fetched since the caller looked
			return set, nil
		}
		set, err := k.fetch(ctx)
		if err == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.set, k.fetched = set, time.Now()
		}
		return set, err
	})
	switch {
	case err == nil:
		return fetched, nil
	case age < keysOld: // the token in question may still be valid
		return set, nil
	case ctx.Err() != nil:
		return keySet{}, fault.New(fault.Unavailable, "eventgrid.verify", "the tenant's keys did not arrive in time")
	}
	return keySet{}, &fault.Error{Code: fault.Unavailable, Op: "eventgrid.verify",
		Msg: "the tenant's keys cannot be read", Err: err,
		Hint: "check " + metadataTenant + ", " + metadataAuthority + " and the network"}
}

// known returns the keys of the last fetch and their age.
func (k *keys) known() (keySet, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set, time.Since(k.fetched)
}

// close ends the running fetch.
func (k *keys) close() { k.fetches.Close() }

// fetch fetches the signing keys.
func (k *keys) fetch(ctx context.Context) (keySet, error) {
	var config struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := k.service.Get(ctx, k.config, nil, &config); err != nil {
		return keySet{}, err
	}
	at, err := url.Parse(config.Keys)
	if err != nil || at.Scheme != "https" || at.Host == "" || !strings.HasPrefix(config.Issuer, "https://") {
		return keySet{}, fault.New(fault.Corrupt, "eventgrid.verify",
			"the tenant's OpenID configuration names no issuer or no keys")
	}
	var said struct {
		Keys []jwk `json:"keys"`
	}
	if err := k.service.Get(ctx, config.Keys, nil, &said); err != nil {
		return keySet{}, err
	}
	set := keySet{issuers: k.issuersOf(config.Issuer), byID: map[string]*rsa.PublicKey{}}
	for _, j := range said.Keys {
		if key := j.key(); key != nil {
			set.byID[j.ID] = key
		}
	}
	if len(set.byID) == 0 {
		return keySet{}, fault.New(fault.Corrupt, "eventgrid.verify", "the tenant has no key that can be used")
	}
	return set, nil
}

// issuersOf returns the issuers whose tokens are accepted: the given issuer, and the version 1 issuer of the same
// tenant.
//
// The URL of the version 1 issuer contains the tenant id. The id is taken from the path of the given issuer, because
// the component may name the tenant by its domain instead.
func (k *keys) issuersOf(issuer string) []string {
	id := k.tenant
	if u, err := url.Parse(issuer); err == nil {
		if first, _, _ := strings.Cut(strings.Trim(u.Path, "/"), "/"); first != "" {
			id = first
		}
	}
	return []string{issuer, k.legacy + id + "/"}
}

// jwk is one JSON Web Key as Entra ID sends it.
type jwk struct {
	ID       string `json:"kid"`
	Kind     string `json:"kty"`
	Use      string `json:"use"`
	Modulus  string `json:"n"`
	Exponent string `json:"e"`
}

// key returns j as an RSA public key. It returns nil if j is malformed, is not an RSA signing key, or has a modulus or
// exponent that is too small or too large.
func (j jwk) key() *rsa.PublicKey {
	if j.ID == "" || j.Kind != "RSA" || j.Use != "" && j.Use != "sig" {
		return nil
	}
	n, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(j.Modulus, "="))
	if err != nil {
		return nil
	}
	e, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(j.Exponent, "="))
	if err != nil || len(e) == 0 || len(e) > 4 {
		return nil
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	if modulus.BitLen() < minKeyBits || modulus.BitLen() > 8*minKeyBits || exponent.Int64() < 3 ||
		exponent.Int64() > maxExponent || exponent.Bit(0) == 0 {
		return nil
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}
}
