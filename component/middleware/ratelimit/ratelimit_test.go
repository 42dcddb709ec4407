package ratelimit_test

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/middleware/ratelimit"
)

func TestLimiter_LimitsEachAddress(t *testing.T) {
	v, _, err := component.Metadata{{Name: "maxRequestsPerSecond", Value: "2"}}.Check(component.Pos{}, "l",
		ratelimit.Fields())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	l, err := ratelimit.Open(v, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	ask := func(address string) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = address
		r.Header.Set("X-Forwarded-For", "10.0.0."+now.Format("05"))
		err := l.Filter(r)
		if refusal, ok := errors.AsType[*middleware.Refusal](err); err != nil && (!ok || refusal.Status != 429 ||
			refusal.Header.Get("Retry-After") != "1") {
			t.Errorf("%v", err)
		}
		return err == nil
	}
	if !ask("10.0.0.1:1") || !ask("10.0.0.1:2") || ask("10.0.0.1:3") {
		t.Error("two of three requests should pass")
	}
	if !ask("10.0.0.2:1") {
		t.Error("another address was limited")
	}
	now = now.Add(500 * time.Millisecond)
	if !ask("10.0.0.1:4") || ask("10.0.0.1:5") {
		t.Error("one more should pass after half a second")
	}
	now = now.Add(3 * time.Hour)
	if !ask("10.0.0.1:6") {
		t.Error("limited after hours")
	}
}

func TestFields_RefuseRates(t *testing.T) {
	for _, rate := range []string{"0", "-1", "many", "NaN"} {
		if _, _, err := (component.Metadata{{Name: "maxRequestsPerSecond", Value: rate}}).Check(component.Pos{}, "l",
			ratelimit.Fields()); err == nil {
			t.Errorf("%s was taken", rate)
		}
	}
}
