package bearer

import (
	"context"
	"fmt"
	"net/http"
)

// SetTransport replaces the transport to the issuer.
func SetTransport(b *Bearer, t http.RoundTripper) { b.issuer.client.Transport = t }

// Failure reads the configuration of the issuer, and returns the text of the error.
func Failure(ctx context.Context, b *Bearer) string {
	_, err := b.issuer.configuration(ctx)
	return fmt.Sprint(err)
}
