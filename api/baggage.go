package api

import (
	"strings"

	"go.opentelemetry.io/otel/baggage"
)

// CheckBaggage checks the values of a request's baggage header, and returns an error if they are not valid W3C baggage.
// The baggage is forwarded to other programs, and some of them reject every request with invalid baggage.
func CheckBaggage(values []string) error {
	if len(values) == 0 {
		return nil
	}
	if _, err := baggage.Parse(strings.Join(values, ",")); err != nil {
		return malformed("invalid baggage header: " + Shorten(err.Error()))
	}
	return nil
}
