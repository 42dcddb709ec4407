// Package bearer implements the middleware middleware.http.bearer, which requires a JSON Web Token of an OpenID
// Connect issuer.
//
// It owns the check of the Authorization header. The library go-oidc fetches the issuer's keys when a token first
// needs them, and caches them. The package has no goroutines of its own.
package bearer

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type.
const Type = "middleware.http.bearer"

const (
	metadataIssuer   = "issuer"
	metadataAudience = "audience"
	metadataKeys     = "jwksURL"
)

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{
		{Name: metadataIssuer, Required: true, Security: true, Aliases: []string{"issuerURL"}, Check: checkURL},
		{Name: metadataAudience, Required: true, Security: true, Aliases: []string{"clientID"}},
		{Name: metadataKeys, Security: true, Check: checkURL},
	}
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fault.New(fault.Invalid, "bearer.Open", "is not an address such as https://accounts.example")
	}
	return nil
}

// readTime bounds reading the configuration or the keys of the issuer.
const readTime = 10 * time.Second

// Bearer checks tokens. It is safe for concurrent use.
type Bearer struct {
	issuer, audience, keysURL string
	client                    *http.Client
	life                      context.Context // of the reads of keys; ends with Close
	end                       context.CancelFunc

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the issuer's configuration was read
}

// Open makes the middleware from its metadata. It does not connect.
func Open(v component.Values) *Bearer {
	b := &Bearer{issuer: v.Text(metadataIssuer), audience: v.Text(metadataAudience), keysURL: v.Text(metadataKeys),
		client: &http.Client{Timeout: readTime}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Close ends reads of keys in progress.
func (b *Bearer) Close() error {
	b.end()
	b.client.CloseIdleConnections()
	return nil
}

// Filter implements middleware.Filter.
func (b *Bearer) Filter(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("the request has no bearer token", "")
	}
	verifier, err := b.keys()
	if err != nil {
		return &middleware.Refusal{Status: http.StatusServiceUnavailable, Code: "ERR_UNAUTHENTICATED",
			Message: "the bearer token cannot be checked: the configuration of the issuer " + b.issuer +
				" cannot be read"}
	}
	if _, err := verifier.Verify(r.Context(), strings.TrimSpace(token)); err != nil {
		return unauthorized("the bearer token is not valid for this issuer and audience, or it has expired",
			"invalid_token")
	}
	return nil
}

// unauthorized never contains the token or the cause, which can quote it.
func unauthorized(text, kind string) error {
	challenge := "Bearer"
	if kind != "" {
		challenge += ` error="` + kind + `"`
	}
	return &middleware.Refusal{Status: http.StatusUnauthorized, Code: "ERR_UNAUTHENTICATED", Message: text,
		Header: http.Header{"Www-Authenticate": {challenge}}}
}

// keys returns the verifier of tokens. The first call fetches the OpenID configuration of the issuer; if that fails,
// the next call tries again. If the URL of the keys is configured, keys fetches nothing.
func (b *Bearer) keys() (*oidc.IDTokenVerifier, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.verifier != nil {
		return b.verifier, nil
	}
	config := &oidc.Config{ClientID: b.audience}
	ctx := oidc.ClientContext(b.life, b.client)
	if b.keysURL != "" {
		b.verifier = oidc.NewVerifier(b.issuer, oidc.NewRemoteKeySet(ctx, b.keysURL), config)
		return b.verifier, nil
	}
	provider, err := oidc.NewProvider(ctx, b.issuer)
	if err != nil {
		return nil, err
	}
	b.verifier = provider.Verifier(config)
	return b.verifier, nil
}
