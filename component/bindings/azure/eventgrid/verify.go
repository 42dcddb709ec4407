package eventgrid

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/quorate/quorate/internal/fault"
)

// skew is the allowed difference between the clocks of this node and of the token's issuer.
const skew = 5 * time.Minute

// issuerEventGrid is the issuer of tokens with the endpoint as their audience.
const issuerEventGrid = "https://eventgrid.azure.net"

// verifier checks the bearer tokens of deliveries. It is safe for concurrent use.
type verifier struct {
	keys      *keys
	client    string
	endpoints []string // accepted forms of the endpoint URL as audience
	parser    *jwt.Parser
}

func newVerifier(s *inputSettings, k *keys) *verifier {
	return &verifier{keys: k, client: s.client, endpoints: []string{s.asGiven, s.endpoint.String(), shown(s.endpoint)},
		parser: jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}), jwt.WithLeeway(skew),
			jwt.WithExpirationRequired())}
}

// verify checks the token of a delivery. It returns fault.Denied if the token is missing or not valid. Any other error
// means that the token could not be checked, because the keys of the tenant are not available.
func (v *verifier) verify(ctx context.Context, h http.Header) error {
	raw := bearer(h)
	if raw == "" {
		return denied("there is no bearer token")
	}
	issuers, err := v.keys.issuers(ctx)
	if err != nil {
		return err
	}
	var claims jwt.RegisteredClaims
	_, err = v.parser.ParseWithClaims(raw, &claims, func(t *jwt.Token) (any, error) {
		kid, ok := t.Header["kid"].(string)
		if !ok || kid == "" {
			return nil, denied("the bearer token names no key")
		}
		return v.keys.find(ctx, kid)
	})
	if err != nil {
		return tokenProblem(err)
	}
	return v.check(claims, issuers)
}

// check checks issuer and audience of a token.
func (v *verifier) check(c jwt.RegisteredClaims, issuers []string) error {
	switch {
	case c.Issuer != issuerEventGrid && !slices.Contains(issuers, c.Issuer):
		return denied("the bearer token comes from another issuer")
	case slices.ContainsFunc(c.Audience, func(a string) bool { return strings.EqualFold(a, v.client) }):
		return nil
	case c.Issuer == issuerEventGrid &&
		slices.ContainsFunc(c.Audience, func(a string) bool { return slices.Contains(v.endpoints, a) }):
		return nil
	}
	return denied("the bearer token is meant for another audience")
}

// tokenProblem converts an error of the JWT library to an error that says what is wrong with the token. It returns a
// *fault.Error unchanged. The result does not contain the text of the library.
func tokenProblem(err error) error {
	if e, ok := fault.As(err); ok {
		return e
	}
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return denied("the bearer token has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return denied("the bearer token is not valid yet")
	case errors.Is(err, jwt.ErrTokenMalformed):
		return denied("the bearer token is malformed")
	}
	return denied("the bearer token is not signed as it must be")
}

func denied(msg string) error { return fault.New(fault.Denied, "eventgrid.verify", msg) }

// bearer returns the token in the Authorization header, or "" if there is none. It also accepts a token without the
// word Bearer in front.
func bearer(h http.Header) string {
	value := strings.TrimSpace(h.Get("Authorization"))
	if word, token, ok := strings.Cut(value, " "); ok {
		if !strings.EqualFold(word, "Bearer") {
			return ""
		}
		return strings.TrimSpace(token)
	}
	return value
}
