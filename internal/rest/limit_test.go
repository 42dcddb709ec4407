package rest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

func TestLimitTo_AcceptsAnswerOfExactlyTheLimit(t *testing.T) {
	for body, want := range map[string]string{"": "", "1234": "1234", "12345": "12345", "123456": "12345"} {
		limited := rest.LimitTo(roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}), 5)
		response, err := limited.RoundTrip(&http.Request{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if string(got) != want || fault.Is(err, fault.TooLarge) != (len(body) > 5) {
			t.Errorf("a body of %d bytes: read %q, %v", len(body), got, err)
		}
	}
}
