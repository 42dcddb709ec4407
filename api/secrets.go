package api

import (
	"context"
	"errors"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// SecretStores returns the opened secret stores. The set changes while components are being loaded. Implementations
// are safe for concurrent use.
type SecretStores interface {
	// SecretStore returns the store with the given component name.
	SecretStore(name string) (*secretstores.Instance, bool)
	// SecretStores returns all stores.
	SecretStores() []*secretstores.Instance
	// Loaded reports whether all components have been opened. Until then, a missing store may still appear.
	Loaded() bool
}

// Secrets serves the secret reads of one application. It is immutable and safe for concurrent use. All errors are
// *Error and never contain a secret.
type Secrets struct {
	app    App
	stores SecretStores
	seen   observed
}

// NewSecrets returns the secrets service of app.
func NewSecrets(app App, stores SecretStores) *Secrets { return &Secrets{app: app, stores: stores} }

// SecretRequest reads one secret with Get, or all secrets of a store with BulkGet.
type SecretRequest struct {
	Store    string
	Name     string            // name of the secret; unused for a bulk read
	Metadata map[string]string // store specific; nil = none
}

// Get reads one secret and returns its values by key. A secret may have several keys. The result is nil if the secret
// does not exist.
func (s *Secrets) Get(ctx context.Context, r SecretRequest) (map[string]string, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return nil, failure
	}
	if r.Name == "" {
		return nil, malformed("the name of the secret is empty")
	}
	if !inst.Scope.Allows(r.Name) {
		return nil, secretDenied(`access denied by policy to get "`+Shorten(r.Name)+`" from "`+inst.Name+`"`, inst.Name,
			r.Name)
	}
	start := s.seen.begin()
	secret, err := inst.Store.Get(ctx, r.Name, r.Metadata)
	if fault.Is(err, fault.NotFound) {
		s.seen.secret(inst.Name, observedGet, start, nil)
		return nil, nil
	}
	s.seen.secret(inst.Name, observedGet, start, err)
	switch {
	case err != nil:
		return nil, secretFailed(err, CodeSecretGet,
			"failed getting secret with key "+Shorten(r.Name)+" from secret store "+inst.Name, inst.Name, r.Name)
	case secret == nil:
		secret = map[string]string{} // the secret exists and has no keys
	}
	return secret, nil
}

// BulkGet reads the secrets of a store, and returns those that the application may read. The result maps the name of
// each secret to its values by key.
func (s *Secrets) BulkGet(ctx context.Context, r SecretRequest) (map[string]map[string]string, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return nil, failure
	}
	if inst.Scope.AllowsNothing() {
		return nil, secretDenied(`access denied by policy to get any secret from "`+inst.Name+`"`, inst.Name, "")
	}
	start := s.seen.begin()
	secrets, err := inst.Store.Bulk(ctx, r.Metadata)
	s.seen.secret(inst.Name, observedBulkGet, start, err)
	if err != nil {
		return nil, secretFailed(err, CodeSecretGet, "failed getting secrets from secret store "+inst.Name, inst.Name,
			"")
	}
	out := make(map[string]map[string]string, len(secrets))
	for name, secret := range secrets {
		if inst.Scope.Allows(name) {
			out[name] = secret
		}
	}
	return out, nil
}

// store returns the secret store with the given name, or an error with the reason why the store cannot be used. A store
// whose scopes exclude the application gives the same error as a store that does not exist.
func (s *Secrets) store(asked string) (*secretstores.Instance, *Error) {
	if inst, ok := s.stores.SecretStore(asked); ok && inst.VisibleTo(s.app.ID) {
		return inst, nil
	}
	if !s.stores.Loaded() {
		return nil, &Error{
			Kind: Unavailable, Code: CodeSecretStoresNotConfigured,
			Message: "secret store " + Shorten(asked) +
				" is not open yet: components are being loaded (wait for /v1.0/healthz/outbound)",
			Details: Details{Reason: ReasonStarting, Metadata: Attributes("store", asked)},
		}
	}
	for _, inst := range s.stores.SecretStores() {
		if inst.VisibleTo(s.app.ID) {
			return nil, &Error{
				Kind: Missing, Code: CodeSecretStoreNotFound, Message: "failed finding secret store with key " +
					ShortenName(asked),
				Details: Details{Reason: ReasonNotFound,
					Metadata: Attributes("appID", s.app.ID, "store", Shorten(asked))},
			}
		}
	}
	return nil, &Error{
		Kind: Failed, Code: CodeSecretStoresNotConfigured,
		Message: "secret store is not configured: no secret store is loaded (add a component of a secretstores " +
			"type)",
		Details: Details{Reason: ReasonNotConfigured, Metadata: Attributes("appID", s.app.ID, "store", Shorten(asked))},
	}
}

func secretDenied(text, store, secret string) *Error {
	return &Error{Kind: Denied, Code: CodePermissionDenied, Message: text,
		Details: Details{Reason: ReasonDenied, Metadata: Attributes("store", store, "secret", Shorten(secret))}}
}

// secretFailed returns the public error for a failed read of a secret. If the store denies access, the kind of the
// error is Failed, because the store has rejected the credentials of this node, not those of the application.
func secretFailed(err error, code, text, store, secret string) *Error {
	e := &Error{Kind: Failed, Code: code, Message: text + ": " + secretText(err), Cause: err,
		Details: Details{Metadata: Attributes("store", store, "secret", Shorten(secret))}}
	switch fault.CodeOf(err) {
	case fault.Invalid:
		e.Kind, e.Code = Malformed, CodeMalformed
	case fault.Denied:
		e.Details.Reason = ReasonDenied
	case fault.TooLarge:
		e.Details.Reason = ReasonTooLarge
	case fault.Overloaded:
		e.Kind, e.Details.Reason = Unavailable, ReasonOverloaded
	case fault.Unavailable:
		e.Kind, e.Details.Reason = Unavailable, ReasonUnavailable
	case fault.Timeout:
		e.Kind, e.Details.Reason = Timeout, ReasonTimeout
	case fault.Corrupt:
		e.Details.Reason = ReasonCorrupt
	default:
		e.Details.Reason = ReasonInternal
	}
	return e
}

// secretText returns the error text of a store if err is a *fault.Error. Otherwise it returns a general text, because
// err may contain a secret.
func secretText(err error) string {
	if _, ok := fault.As(err); ok {
		return fault.Text(err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the store did not answer before the request's time was over (--request-timeout)"
	case errors.Is(err, context.Canceled):
		return "the caller went away before the store answered"
	}
	return "the store failed"
}
