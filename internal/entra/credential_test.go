package entra_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

type source func(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error)

func (s source) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return s(ctx, o)
}

// TestCredential_RequestsShareTheFetchOfAToken checks that requests do not wait for one another if Entra ID hangs. A
// request must wait no longer than its own context.
func TestCredential_RequestsShareTheFetchOfAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		hang := func(ctx context.Context, _ policy.TokenRequestOptions) (azcore.AccessToken, error) {
			fetches++
			<-ctx.Done()
			return azcore.AccessToken{}, ctx.Err()
		}
		c := entra.NewCredential(source(hang))
		defer c.Close()
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		ask := func(ctx context.Context, wait time.Duration, code fault.Code) {
			_, err := c.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"s"}})
			if err == nil || time.Since(begin) != wait || entra.Failure(ctx, "Entra ID", err).Code != code {
				t.Errorf("%v after %s, want %s after %s", err, time.Since(begin), code, wait)
			}
		}
		go ask(brief, time.Second, fault.Timeout)
		for range 4 {
			go ask(t.Context(), 10*time.Second, fault.Unavailable)
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		ask(t.Context(), 10*time.Second, fault.Unavailable)
		if fetches != 1 {
			t.Errorf("%d fetches", fetches)
		}
	})
}

// TestCredential_RefusalHasOneMeaningForAll checks that all requests that share a refusal can read the answer of Entra
// ID.
func TestCredential_RefusalHasOneMeaningForAll(t *testing.T) {
	c := entra.NewCredential(source(func(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
		return azcore.AccessToken{}, &azidentity.AuthenticationFailedError{RawResponse: &http.Response{
			StatusCode: http.StatusUnauthorized,
			Body:       io.NopCloser(strings.NewReader(`{"error_codes":[7000222]}`)),
		}}
	}))
	defer c.Close()
	for range 3 {
		_, err := c.GetToken(t.Context(), policy.TokenRequestOptions{})
		e := entra.Failure(t.Context(), "Entra ID", err)
		if e.Code != fault.Denied || !strings.Contains(e.Msg, "7000222") {
			t.Errorf("%v", e)
		}
	}
}
