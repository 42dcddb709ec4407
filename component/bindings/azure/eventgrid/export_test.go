package eventgrid

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/component/bindings"
)

// Events returns the events of a delivery.
func Events(h http.Header, body []byte) ([]json.RawMessage, error) { return events(h, body) }

// ValidationCode parses the older handshake.
func ValidationCode(body []byte) (string, bool) { return validationCode(body) }

// Envelope returns what is published.
func Envelope(r bindings.Request) ([]byte, string, error) { return (&output{name: "n"}).envelope(r) }

// Wanted returns the requested subscription, based on an existing one.
func Wanted(endpoint string, existing []byte) ([]byte, error) {
	at, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	return wanted(&inputSettings{endpoint: at, tenant: "t", client: "c", protected: true}, existing)
}

// ParseScope reads a scope.
func ParseScope(text string) (string, error) { return parseScope(text) }
