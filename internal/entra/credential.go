package entra

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/flight"
)

const (
	tokenTime = 10 * time.Second // maximum time of one fetch of a token
	tokenRest = 2 * time.Second  // time after a failed fetch in which no other fetch starts
)

// Credential implements azcore.TokenCredential. Concurrent requests for the same token share one fetch, which has its
// own timeout. Requests for different tokens do not wait for one another. A Credential is safe for concurrent use.
type Credential struct {
	source  azcore.TokenCredential
	fetches *flight.Group[azcore.AccessToken]
}

func newCredential(source azcore.TokenCredential) *Credential {
	return &Credential{source, flight.New[azcore.AccessToken](tokenTime, tokenRest)}
}

// GetToken implements azcore.TokenCredential. It does not cache tokens, because the wrapped credential does.
func (c *Credential) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	key := fmt.Sprintf("%q %q %q %t", o.Scopes, o.Claims, o.TenantID, o.EnableCAE)
	return c.fetches.Do(ctx, key, func(ctx context.Context) (azcore.AccessToken, error) {
		token, err := c.source.GetToken(ctx, o)
		if refused, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
			err = &refusedToken{err, refusal(refused.RawResponse)}
		}
		return token, err
	})
}

// Close ends the running fetches. It may be called twice, and on a nil *Credential.
func (c *Credential) Close() {
	if c != nil {
		c.fetches.Close()
	}
}

// refusedToken is the error of a failed request for a token. The field meaning describes the error for the operator.
// This field is set when the answer arrives. Several requests may share the error, but the body of the answer can be
// read only once.
type refusedToken struct {
	error
	meaning *fault.Error
}

// Unwrap returns the original error of Microsoft's library, by which the library recognizes that it must not retry the
// request.
func (e *refusedToken) Unwrap() error { return e.error }
