package jobproto_test

import (
	"testing"
	"time"

	"github.com/quorate/quorate/api/jobproto"
)

func TestParsePolicy_TakesDurationsOfGo(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`{"constant":{"interval":"5s"}}`:                               5 * time.Second,
		`{"constant":{"interval":"0.25s","maxRetries":"2"}}`:           250 * time.Millisecond,
		`{"constant":{"interval":"0h1m5s20ms0μs","maxRetries":2}}`:     time.Minute + 5020*time.Millisecond,
		"{\"constant\":{\"interval\":\"0h0m1s0ms7\\u03bcs\"}}":         time.Second + 7*time.Microsecond,
		`{"constant":{"max_retries":1,"interval":null},"unknown":"x"}`: time.Second,
		`{"constant":{"interval":"0s"}}`:                               0,
	} {
		p, err := jobproto.ParsePolicy([]byte(text))
		if err != nil || p == nil || !p.Retry || p.Interval != want {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}
	for _, text := range []string{`{"constant":{"interval":"soon"}}`, `{"constant":3}`, `[]`} {
		if p, err := jobproto.ParsePolicy([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, p)
		}
	}
}
