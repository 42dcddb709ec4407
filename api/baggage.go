package api

import (
	"strings"

	"go.opentelemetry.io/otel/baggage"
)

// CheckBaggage returns an error if values, the values of the baggage header, are not valid W3C baggage. Baggage is
// forwarded to other programs, and some of them reject every request with invalid baggage.
func CheckBaggage(values []string) error {
	if len(values) == 0 {
		return nil
	}
	if _, err := baggage.Parse(strings.Join(values, ",")); err != nil {
		return malformed("invalid baggage header: " + Shorten(err.Error()))
	}
	return nil
}
