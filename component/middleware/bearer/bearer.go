// Package bearer implements the middleware middleware.http.bearer. It refuses requests without a valid JSON Web Token
// from an OpenID Connect issuer.
//
// The package owns the check of the Authorization header, and the cache of the keys of the issuer. It fetches the keys
// when they are first needed. Each fetch runs in a goroutine, which Close ends.
package bearer

import (
	"net/http"
	"net/url"
	"strings"

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

// Bearer checks tokens. It is safe for concurrent use.
type Bearer struct {
	audience string
	issuer   *issuer
}

// Open makes the middleware from its metadata. It does not connect.
func Open(v component.Values) *Bearer {
	return &Bearer{audience: v.Text(metadataAudience),
		issuer: newIssuer(v.Text(metadataIssuer), v.Text(metadataKeys))}
}

// Close ends fetches from the issuer.
func (b *Bearer) Close() error {
	b.issuer.close()
	return nil
}

// Filter implements middleware.Filter.
func (b *Bearer) Filter(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("the request has no bearer token", "")
	}
	c, err := b.issuer.configuration(r.Context())
	if err != nil {
		return b.unavailable("configuration")
	}
	check := &attempt{issuer: b.issuer, config: c}
	verifier := oidc.NewVerifier(b.issuer.name, check,
		&oidc.Config{ClientID: b.audience, SupportedSigningAlgs: c.algorithms})
	_, err = verifier.Verify(r.Context(), strings.TrimSpace(token))
	switch {
	case check.failed != nil:
		return b.unavailable("keys")
	case err != nil:
		return unauthorized("the bearer token is not valid for this issuer and audience, or it has expired",
			"invalid_token")
	}
	return nil
}

// unavailable returns the refusal of a request whose token cannot be checked. The parameter part says what could not be
// read from the issuer: "configuration" or "keys".
func (b *Bearer) unavailable(part string) error {
	return &middleware.Refusal{Status: http.StatusServiceUnavailable, Code: "ERR_UNAUTHENTICATED",
		Message: "the bearer token cannot be checked: the " + part + " of the issuer " + b.issuer.name +
			" cannot be read"}
}

// unauthorized returns the refusal of a request without a valid token. The parameter kind becomes the error code in the
// header Www-Authenticate; "" means no code. The refusal does not contain the token or the underlying error, which may
// quote the token.
func unauthorized(text, kind string) error {
	challenge := "Bearer"
	if kind != "" {
		challenge += ` error="` + kind + `"`
	}
	return &middleware.Refusal{Status: http.StatusUnauthorized, Code: "ERR_UNAUTHENTICATED", Message: text,
		Header: http.Header{"Www-Authenticate": {challenge}}}
}
