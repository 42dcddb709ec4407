package eventgrid

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/component/bindings"
)

// MaxConnections is the largest number of connections of an input.
const MaxConnections = maxConnections

// Events returns the events of a delivery.
func Events(h http.Header, body []byte) ([]json.RawMessage, error) { return events(h, body) }

// ValidationCode returns the code in a validation handshake of the Event Grid schema.
func ValidationCode(body []byte) (string, bool) { return validationCode(body) }

// Envelope returns the body to publish for a request, and its content type.
func Envelope(r bindings.Request) ([]byte, string, error) { return (&output{name: "n"}).envelope(r) }

// Wanted returns the document of the requested subscription, based on the existing document.
func Wanted(endpoint string, existing []byte) ([]byte, error) {
	at, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	return wanted(&inputSettings{endpoint: at, tenant: "t", client: "c", protected: true}, existing)
}

// ParseScope parses a scope.
func ParseScope(text string) (string, error) { return parseScope(text) }
