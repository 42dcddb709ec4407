package secretmanager

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/flight"
	"github.com/quorate/quorate/internal/rest"
)

// scope is the scope of access tokens.
const scope = "https://www.googleapis.com/auth/cloud-platform"

const (
	tokenTime = 10 * time.Second // longest time of one fetch of a token
	tokenRest = 2 * time.Second  // time after a failed fetch in which no other fetch starts
)

// tokens keeps the access token of one identity until it expires or is refused.
type tokens struct {
	key       []byte // JSON of a service account; nil = the identity of the environment
	transport http.RoundTripper
	fetches   *flight.Group[*oauth2.Token]

	mu    sync.Mutex // guards token
	token *oauth2.Token
}

func newTokens(key []byte, transport http.RoundTripper) (*tokens, error) {
	t := &tokens{key: key, transport: transport, fetches: flight.New[*oauth2.Token](tokenTime, tokenRest)}
	if key == nil {
		return t, nil
	}
	if _, err := t.source(context.Background()); err != nil || !hasPrivateKey(key) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "secretmanager.Open",
			Msg:  "the service account's key cannot be read",
			Hint: "give type, project_id, client_email and private_key as its key file has them"}
	}
	return t, nil
}

// hasPrivateKey reports whether a key file contains a usable RSA private key. Open makes this check so that a bad key
// fails when the store is opened, and not at the first request.
func hasPrivateKey(key []byte) bool {
	var said struct {
		PrivateKey string `json:"private_key"`
	}
	if json.Unmarshal(key, &said) != nil {
		return false
	}
	block, _ := pem.Decode([]byte(said.PrivateKey))
	if block == nil {
		return false
	}
	if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		_, ok := parsed.(*rsa.PrivateKey)
		return ok
	}
	_, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	return err == nil
}

// authorize implements rest.Client.Authorize.
func (t *tokens) authorize(ctx context.Context, h http.Header, again bool) (bool, error) {
	token := t.known(again)
	if !token.Valid() {
		var err error
		if token, err = t.fetches.Do(ctx, "", t.fetch); err != nil {
			if _, ours := fault.As(err); !ours { // the request ended, or the store was closed
				err = failure(ctx, err)
			}
			return false, err
		}
	}
	h["Authorization"] = []string{"Bearer " + token.AccessToken}
	return true, nil
}

// known returns the cached token, or nil if there is none. Set refused if the service has refused the cached token. In
// this case, known removes the token from the cache and returns nil.
func (t *tokens) known(refused bool) *oauth2.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	if refused {
		t.token = nil
	}
	return t.token
}

// fetch returns a valid token. It first checks the cache again, because another fetch may have finished since the
// caller checked. If the cache has no valid token, fetch requests one from the token service and caches it.
func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, error) {
	if token := t.known(false); token.Valid() {
		return token, nil
	}
	source, err := t.source(ctx)
	if err != nil {
		return nil, &fault.Error{Code: fault.Denied, Op: "secretmanager.Token",
			Msg:  "this machine has no Google Cloud credentials",
			Hint: "give the key of a service account, or set GOOGLE_APPLICATION_CREDENTIALS"}
	}
	token, err := source.Token()
	if err != nil {
		return nil, failure(ctx, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token = token
	return token, nil
}

// source returns a new token source, which is used to get one token. When ctx ends, the requests of the token source
// are cancelled.
func (t *tokens) source(ctx context.Context) (oauth2.TokenSource, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient,
		&http.Client{Transport: bounded{ctx, rest.Limit(t.transport)}, CheckRedirect: stay})
	if t.key == nil {
		found, err := google.FindDefaultCredentials(ctx, scope)
		if err != nil {
			return nil, err
		}
		return found.TokenSource, nil
	}
	found, err := google.CredentialsFromJSONWithType(ctx, t.key, google.ServiceAccount, scope)
	if err != nil {
		return nil, err
	}
	return found.TokenSource, nil
}

// bounded is an http.RoundTripper that replaces the context of each request with the field ctx. This is necessary
// because the client library does not use the caller's context for its requests.
type bounded struct {
	ctx       context.Context
	transport http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	return b.transport.RoundTrip(r.WithContext(b.ctx))
}

// stay is the CheckRedirect function of the HTTP client. It follows no redirects, because a signed request must not be
// sent to another address. Instead, the client returns the redirect response.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// failure converts an error of the token service to a fault. The fault contains only the error code. It omits the
// description of the error, because that may quote the request.
func failure(ctx context.Context, err error) error {
	const op = "secretmanager.Token"
	var refused *oauth2.RetrieveError
	switch {
	case ctx.Err() != nil:
		return &fault.Error{Code: fault.Timeout, Op: op, Msg: "the Google Cloud token service did not answer in time",
			Err: ctx.Err()}
	case !errors.As(err, &refused):
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the Google Cloud token service gave no access token",
			Hint: "check that it can be reached and that the key is whole"}
	}
	e := &fault.Error{Code: fault.Denied, Op: op, Msg: "Google Cloud refused the credentials",
		Hint: "check that the key has not been revoked and that this machine's clock is right"}
	if code := errorCode(refused); code != "" {
		e.Msg += ": " + code
	}
	if refused.Response != nil {
		switch status := refused.Response.StatusCode; {
		case status == http.StatusTooManyRequests:
			e.Code, e.Msg, e.Hint = fault.Overloaded, "the Google Cloud token service asks to be called less often", ""
		case status >= 500:
			e.Code, e.Msg, e.Hint = fault.Unavailable, "the Google Cloud token service cannot serve now", ""
		}
	}
	return e
}

// errorCode returns the OAuth error code of a refused token request, such as "invalid_grant". It returns "" if the
// response has no error code or a malformed one.
func errorCode(refused *oauth2.RetrieveError) string {
	said := struct {
		Error string `json:"error"`
	}{refused.ErrorCode}
	if said.Error == "" && json.Unmarshal(refused.Body, &said) != nil {
		return ""
	}
	if len(said.Error) > 64 || strings.Trim(said.Error, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	return said.Error
}
