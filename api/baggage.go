package api

import (
	"strings"

	"go.opentelemetry.io/otel/baggage"
)

// CheckBaggage returns an error if values of the header baggage are not W3C baggage. Baggage is passed on to other
// programs, which may refuse a whole request because of it.
func CheckBaggage(values []string) error {
	if len(values) == 0 {
		return nil
	}
	if _, err := baggage.Parse(strings.Join(values, ",")); err != nil {
		return malformed("invalid baggage header: " + Shorten(err.Error()))
	}
	return nil
}
